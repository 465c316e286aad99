// @ts-check
/** The chat: a conversation, its answers as they come, and what each took. */

import { fill, h, keyed } from "../core/dom.js";
import { button, keptText, menu } from "../core/parts.js";
import { effect, onEnd, signal } from "../core/signal.js";
import { Asker } from "./asker.js";
import { createBeside } from "./beside.js";
import { createComposer } from "./composer.js";
import { createForecast } from "./forecast.js";
import { createKept } from "./kept.js";
import { createKeys } from "./keys.js";
import { createAnswer, createAsk, createResult } from "./messages.js";
import { chips, createSettings } from "./settings.js";
import { createSidebar, downloadTalk } from "./sidebar.js";
import { builtInResult, wantsResults } from "./tools.js";
import { drop, isUnanswered, newConversation } from "./tree.js";
import { createWelcome } from "./welcome.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./tree.js").Conversation} Conversation */
/** @typedef {import("./settings.js").Settled} Settled */

/** Answers and results after a question, from which on the user sends results: a model may call without end. */
const MAX_ROUND = 12;

/** What goes on in a chat; `view` shows it. */
class Chat extends Asker {
  /** @param {import("../views.js").App} app */
  constructor(app) {
    super(app, { several: true });
    this.kept = createKept();
    this.keeps = signal(true);
    this.busy = signal(false);
    this.beside = signal(false);
    /** A question without an answer, whose text is in the message box again. @type {Message | undefined} */
    this.returned = undefined;
    /** The settings of the next chat, if they are not those of this one. @type {Record<string, any> | undefined} */
    this.usual = undefined;
    /** What links tokens to the engine. @type {Partial<ReturnType<typeof createBeside>>} */
    this.linked = {};
    this.step = async (/** @type {Message} */ message, /** @type {number} */ index) =>
      await this.linked.step?.(message, index) ?? false;
  }

  save() {
    if (this.keeps.peek() && this.talk.peek().messages.length > 0) this.kept.save(this.talk.peek());
  }

  /** @param {Conversation} talk */
  open(talk) {
    this.stop();
    this.keeps.set(true);
    this.returned = this.usual = undefined;
    this.talk.set(talk);
    this.changed();
  }

  create() {
    const { settings, system } = this.talk.peek();
    this.open({ ...newConversation(this.usual ?? settings), system });
  }

  /** @param {Settled} settled */
  settle(settled) {
    this.usual = undefined;
    Object.assign(this.talk.peek(), settled);
    this.changed();
    this.save();
  }

  /** Sends an example, whose settings are those of this chat alone. @param {import("./welcome.js").Example} example */
  async example({ text, settings, colour }) {
    const talk = this.talk.peek(), usual = { ...talk.settings };
    talk.settings = { ...usual, ...settings };
    this.usual = usual;
    await this.send(text);
    if (colour) this.shown.get(this.path.at(-1)?.id ?? "")?.colours()?.set(colour);
  }

  /** The request if this message were sent now. @param {string} text */
  asked(text) {
    const body = this.body(this.next);
    body.messages.push({ role: "user", content: text });
    return body;
  }

  /** @override @param {string} text @param {string} [parent] */
  send(text, parent = this.next) {
    const talk = this.talk.peek(), answers = talk.messages.filter((each) => each.parent === this.returned?.id);
    if (this.returned && answers.every((each) => isUnanswered(each) && !each.reasoning)) {
      [...answers, this.returned].forEach((each) => drop(talk, each));
    }
    this.returned = undefined;
    return super.send(text, parent);
  }

  /** @override @param {Message[]} messages */
  began(messages) {
    this.busy.set(true);
    super.began(messages);
    this.save();
  }

  /** @override @param {Conversation} talk @param {Message} message */
  ended(talk, message) {
    this.busy.set(this.running.length > 0);
    if (talk === this.talk.peek()) this.changed();
    if (this.keeps.peek()) this.kept.save(talk);
    super.ended(talk, message);
    const { fault, finish, calls = [] } = message, question = this.find(message.parent);
    const open = isUnanswered(message) && this.isLast(message) && question?.role === "user";
    if (open && this.giveBack(question.content)) this.returned = question;
    if (!fault) {
      this.app.announce(finish === "stopped" ? "Stopped." : `The answer is complete: ${message.content.slice(0, 200)}`);
    }
    const results = calls.map(builtInResult);
    const round = this.path.length - this.path.findLastIndex(({ role }) => role === "user");
    if (wantsResults(message) && round < MAX_ROUND && results.every((result) => result !== null)) {
      this.results(message, /** @type {string[]} */ (results));
    }
  }

  /** @override @param {Message} message @param {number} by */
  turn(message, by) {
    super.turn(message, by);
    this.save();
  }

  /** @override @param {Message} message @param {number} index */
  chosen(message, index) {
    this.linked.chosen?.(message, index);
  }
}

/** The messages of the shown path, scrolled to the end while the user is there. @param {Chat} chat */
function createTalk(chat) {
  const talk = h("div.talk"), welcome = createWelcome(chat.app, (example) => chat.example(example));
  const scroll = h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Conversation" }, welcome, talk);
  const list = keyed(talk, (/** @type {Message} */ message) => message.id, (message) => {
    const view = message.role === "user"
      ? createAsk(message, chat)
      : message.role === "tool"
      ? createResult(message)
      : createAnswer(message, chat);
    chat.shown.set(message.id, view);
    return { element: view.element, update: () => view.update() };
  });
  let low = true, top = 0;
  scroll.addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = scroll;
    low = scrollHeight - scrollTop - clientHeight < 40 || (low && scrollTop >= top); // what grows meanwhile is below
    top = scrollTop;
  });
  const toEnd = () => low && welcome.hidden && scroll.scrollTo(0, scroll.scrollHeight);
  const grown = new ResizeObserver(toEnd);
  grown.observe(talk);
  onEnd(() => (grown.disconnect(), list.end()));
  return {
    element: scroll,
    update: () => {
      welcome.hidden = chat.path.length > 0;
      list.update(chat.path);
    },
    down: () => {
      low = true;
      toEnd();
    },
  };
}

/** The name of the conversation, and what can be done with it. @param {Chat} chat @param {() => void} list */
function createHead(chat, list) {
  const rename = () => {
    chat.talk.peek().title = title.value;
    chat.save();
  };
  const title = h("input.title", {
    "aria-label": "Name of the conversation",
    placeholder: "New chat",
    onchange: rename,
  });
  const keep = h("input", { type: "checkbox", onchange: toggle });
  function toggle() {
    chat.keeps.set(keep.checked);
    if (keep.checked) chat.save();
    else chat.kept.remove(chat.talk.peek().id);
  }
  const remove = () => (chat.kept.remove(chat.talk.peek().id), chat.create());
  const engine = button("Engine", () => chat.beside.set(!chat.beside.peek()));
  effect(() => engine.setAttribute("aria-pressed", String(chat.beside.get())));
  const more = menu(
    "More",
    h("label.check", keep, "Save chat"),
    button("Export", () => downloadTalk(chat.talk.peek())),
    button("Delete", remove),
  );
  const element = h(
    "div.head",
    button("Chats", list, { class: "chip lists", "aria-controls": "side" }),
    title,
    engine,
    more,
  );
  effect(() => void (keep.checked = chat.keeps.get()));
  return {
    element,
    /** @param {boolean} [typed]  whether there is something to send */
    update: (typed = false) => {
      title.value = chat.talk.peek().title;
      more.hidden = chat.path.length === 0 && !typed;
    },
  };
}

/** What keys do. @param {Chat} chat @param {() => void} create @param {() => void} search @param {() => void} close  the list */
function shortcuts(chat, create, search, close) {
  const step = (/** @type {number} */ by) => {
    const message = chat.path.findLast((each) => chat.branch(each).of > 1);
    if (message) chat.turn(message, by);
  };
  const newest = () => chat.path.findLast((message) => message.role === "assistant")?.id ?? "";
  return {
    "Escape": () => (close(), chat.stop()),
    "Ctrl k": create,
    "/": search,
    "[": () => step(-1),
    "]": () => step(1),
    "t": () => chat.shown.get(newest())?.colours()?.next(),
    "e": () => chat.beside.set(!chat.beside.peek()),
  };
}

/** The message box, with the forecast of what is typed. @param {Chat} chat @param {(typed: string) => void} typed @param {() => void} down */
function createSay(chat, typed, down) {
  const { app } = chat;
  let foresee = (/** @type {string} */ _) => {};
  const composer = createComposer({
    send: (text) => (down(), chat.send(text)),
    stop: () => chat.stop(),
    changed: (text, only) => (typed(only), foresee(text)),
    busy: chat.busy,
  });
  foresee = createForecast(app, composer.guess, (text) => chat.asked(text));
  effect(() => {
    app.server.get();
    app.model.get();
    foresee(composer.box.value);
  });
  return composer;
}

/** The chat continues while another view is shown. @type {Chat | null} */
let kept = null;

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const chat = kept ??= new Chat(app), talk = createTalk(chat);
  const settings = createSettings(app, (settled) => chat.settle(settled));
  const head = createHead(chat, () => frame.classList.toggle("listed")), draft = keptText("twofold.draft", true);
  const typed = (/** @type {string} */ text) => (draft.set(text), head.update(text !== ""));
  const composer = createSay(chat, typed, () => talk.down());
  const close = () => frame.classList.remove("listed");
  const open = (/** @type {Conversation} */ next) => (chat.open(next), talk.down(), close(), composer.box.focus());
  const create = () => (chat.create(), close(), composer.box.focus());
  const side = createSidebar(chat.kept, { current: chat.talk, open, create });
  const frame = h(
    "div.chats",
    side.element,
    h(
      "main.chat",
      { onpointerdown: close },
      h("h1.hidden", "Chat"),
      head.element,
      talk.element,
      composer.element,
    ),
    settings.dialog,
  );
  const search = () => (frame.classList.add("listed"), side.search.focus());
  frame.append(createKeys(shortcuts(chat, create, search, close)));
  chat.changed = () => {
    talk.update();
    head.update(composer.box.value !== "");
    fill(composer.chips, chips(chat.talk.peek(), (field) => settings.open(chat.talk.peek(), field)));
  };
  chat.changed();
  root.append(frame);
  const answers = () =>
    chat.path.map((message) => /** @type {[Message, any]} */ ([message, chat.shown.get(message.id)]));
  chat.linked = createBeside(app, chat.beside, frame, answers);
  Object.assign(chat, { giveBack: composer.giveBack, takeBack: composer.takeBack });
  composer.set(draft.get());
  composer.box.focus();
  performance.mark("ready");
  chat.kept.load();
  talk.down();
  onEnd(() => {
    chat.changed = () => {};
    chat.linked = {};
    chat.shown.clear();
    chat.giveBack = (text) => !draft.get() && (draft.set(text), draft.get() === text);
    chat.takeBack = () => {};
  });
}
