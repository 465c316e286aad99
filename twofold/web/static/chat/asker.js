// @ts-check
/** What asks for answers: a chat, or one side of a comparison. The parts of an answer call it. */

import { signal } from "../core/signal.js";
import { bodyOf, copyOf, isStructured } from "./request.js";
import { loading, reconcile, runInto } from "./run.js";
import { add, asked, branch, drop, isUnanswered, newConversation, path, turn } from "./tree.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./tree.js").Conversation} Conversation */

export class Asker {
  /**
   * @param {import("../views.js").App} app
   * @param {{model?: import("../core/signal.js").Signal<string>, several?: boolean}} [options]  `several`: as many
   *   answers as the settings say
   */
  constructor(app, { model = app.model, several = false } = {}) {
    this.app = app;
    this.model = model;
    this.several = several;
    this.talk = signal(newConversation());
    /** @type {Message[]} those that come */
    this.running = [];
    this.abort = new AbortController();
    /** Views of messages by id. @type {Map<string, any>} */
    this.shown = new Map();
    /** Seconds that the pictures of receipts have at least. */
    this.axis = 0;
    /** Shows the step of a token, if it is known. @type {((message: Message, index: number) => Promise<boolean>) | undefined} */
    this.step = undefined;
  }

  /** Called after each change of what is shown. */
  changed() {}

  /** Called with messages that begin to come. @param {Message[]} _messages */
  began(_messages) {
    this.changed();
  }

  /** Called with the shown one of them at the end. @param {Conversation} _talk @param {Message} message */
  ended(_talk, message) {
    reconcile(this.app, message);
  }

  /** A token was chosen, or none: -1. @param {Message} _message @param {number} _index */
  chosen(_message, _index) {}

  /** Gets the text of a question that was not answered back; false if it has no place for it. @param {string} _text @returns {boolean} */
  giveBack(_text) {
    return false;
  }

  /** A question whose text was given back is asked again: the text has to go. @param {string} _text */
  takeBack(_text) {}

  get path() {
    return path(this.talk.peek());
  }

  stop() {
    this.abort.abort();
  }

  /** @param {string} id */
  find(id) {
    return this.talk.peek().messages.find((each) => each.id === id);
  }

  /** Below what the next question goes: a branch beside one that was not answered. */
  get next() {
    const last = this.path.at(-1), question = last && isUnanswered(last) ? this.find(last.parent) : undefined;
    return question?.role === "user" ? question.parent : last?.id ?? "";
  }

  /** @param {string} text @param {string} [parent] */
  send(text, parent = this.next) {
    return this.answer(add(this.talk.peek(), { parent, role: "user", content: text }).id);
  }

  /**
   * The request for an answer below `parent`.
   * @param {string} parent
   * @param {{begun?: string, ids?: readonly number[]}} [from]
   * @param {string} [model]
   */
  body(parent, from = {}, model = this.model.peek()) {
    const talk = this.talk.peek(), all = new Map(talk.messages.map((message) => [message.id, message]));
    const before = [], prices = this.app.server.peek()?.prices.reference;
    for (let each = all.get(parent); each; each = all.get(each.parent)) before.unshift(each);
    return bodyOf(model, talk, asked(before), { ...from, prices, several: this.several });
  }

  /**
   * Asks for answers below a message, or to go on from the beginning of one.
   * @param {string} parent @param {string} [begun] @param {number[]} [ids]  of its tokens @param {string} [reasoning]
   */
  async answer(parent, begun = "", ids = [], reasoning = "") {
    this.stop();
    const model = this.model.peek(), talk = this.talk.peek();
    const body = this.body(parent, { begun, ids });
    const from = begun ? { begun, ...(ids.length > 0 ? { ids, begunIds: ids.length } : {}) } : {};
    const thought = reasoning && ids.length > 0 ? { reasoning } : {};
    const running = Array.from({ length: body.n ?? 1 }, (_, choice) => {
      const which = body.n ? { choice } : {};
      return add(talk, { parent, role: "assistant", content: begun, model, ...which, ...from, ...thought });
    });
    talk.chosen[parent] = running[0].id;
    const abort = this.abort = new AbortController();
    this.running = running;
    this.began(running);
    const viewOf = (/** @type {Message} */ { id }) => this.shown.get(id);
    await runInto(viewOf, this.app.api, body, running, abort.signal, loading(this.app, model));
    if (this.running === running) this.running = [];
    running.forEach((message) => viewOf(message)?.end());
    this.ended(talk, running.find(({ id }) => id === talk.chosen[parent]) ?? running[0]);
  }

  /** @param {Message} message */
  branch(message) {
    return branch(this.talk.peek(), message);
  }

  /** @param {Message} message @param {number} by */
  turn(message, by) {
    if (turn(this.talk.peek(), message, by)) this.changed();
  }

  /** Asks anew; an answer without anything to read is no branch. @param {Message} message */
  again(message) {
    const { parent } = message;
    this.takeBack(this.find(parent)?.content ?? "");
    if (isUnanswered(message) && !message.reasoning) drop(this.talk.peek(), message);
    this.answer(parent);
  }

  /** @param {Message} message @param {string} text */
  edit({ parent }, text) {
    this.send(text, parent);
  }

  /** @param {Message} message @param {string} begun @param {number[]} [ids] */
  goOn({ parent, reasoning }, begun, ids) {
    this.answer(parent, begun, ids, reasoning);
  }

  /** @param {Message} message @param {string[]} results */
  results({ id, calls = [] }, results) {
    let parent = id;
    calls.forEach(({ id, name }, index) => {
      parent = add(this.talk.peek(), { parent, role: "tool", content: results[index], call: id, name }).id;
    });
    this.answer(parent);
  }

  /** @param {Message} message @param {"text" | "curl" | "python"} form */
  copy(message, form) {
    const { parent, begun, begunIds, ids } = message;
    const body = this.body(parent, { begun, ids: begunIds ? ids?.slice(0, begunIds) : [] }, message.model);
    return copyOf(this.app.api, form, message, body);
  }

  /** @param {Message} message */
  isRunning(message) {
    return this.running.includes(message);
  }

  /** @param {Message} message */
  isLast(message) {
    return this.path.at(-1) === message;
  }

  isStructured() {
    return isStructured(this.talk.peek());
  }

  /** The address that explains a request, null if the server cannot. @param {Message} message */
  explain({ record }) {
    const { server, route } = this.app;
    return record && server.peek()?.can.includes("explain") ? route.href("explore", { request: record.id }) : null;
  }

  /** What would help a request. @param {Message} message @returns {Promise<any>} */
  help({ record }) {
    return this.app.api.post("/v1/twofold/explain", { request: record.id });
  }
}
