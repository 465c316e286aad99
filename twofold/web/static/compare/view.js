// @ts-check
/** Compare: one message to two models or settings, side by side; their receipts share an axis of time. */

import { createComposer } from "../chat/composer.js";
import { createAnswer } from "../chat/messages.js";
import { explaining, lastTime } from "../chat/receipt.js";
import { bodyOf, copyOf, isStructured } from "../chat/request.js";
import { loading, reconcile, runInto } from "../chat/run.js";
import { chips, createSettings } from "../chat/settings.js";
import { add, newConversation } from "../chat/tree.js";
import { fill, h } from "../core/dom.js";
import { choice } from "../core/parts.js";
import { onEnd, signal } from "../core/signal.js";
import { createModelPicker } from "../shell/models.js";
import { differences } from "./differences.js";

/** @typedef {import("../chat/tree.js").Message} Message */
/** @typedef {import("../chat/messages.js").Actions} Actions */

/** One of the two: a model, settings, and the answer. */
class Side {
  /** @param {import("../views.js").App} app @param {string} name @param {() => void} ended */
  constructor(app, name, ended) {
    this.app = app;
    this.ended = ended;
    this.talk = newConversation();
    this.text = "";
    this.axis = 0;
    this.running = false;
    this.abort = new AbortController();
    /** @type {Message | null} */
    this.message = null;
    /** @type {ReturnType<typeof createAnswer> | null} */
    this.view = null;
    this.model = signal(app.model.peek());
    this.chips = h("span.chips");
    this.place = h("div", h("p.faint", "Nothing sent yet."));
    const picker = createModelPicker(this.model, app.server, `Model of ${name}`, {
      get: app.model.peek,
      set: () => {},
    });
    this.element = h(
      "section",
      { "aria-label": name },
      h("div.side-head", h("h2", name), picker, this.chips),
      this.place,
    );
  }

  /** @param {string} parent @param {{begun?: string, ids?: readonly number[]}} [from] */
  body(parent, from = {}) {
    const asked = this.talk.messages.filter(({ id }) => id === parent);
    return bodyOf(this.model.peek(), this.talk, asked, { ...from, prices: this.app.server.peek()?.prices.reference });
  }

  /** Asks for an answer, or to go on from the beginning of one. @param {string} text @param {string} [begun] @param {number[]} [ids] */
  async ask(text, begun = "", ids = []) {
    this.abort.abort();
    const abort = this.abort = new AbortController(), { talk } = this;
    Object.assign(talk, { messages: [], chosen: {} });
    this.text = text;
    this.axis = 0;
    const { id: parent } = add(talk, { parent: "", role: "user", content: text });
    const body = this.body(parent, { begun, ids }), from = begun ? { begun, ids, begunIds: ids.length } : {};
    const message = add(talk, { parent, role: "assistant", content: begun, model: this.model.peek(), ...from });
    this.message = message;
    this.running = true;
    const view = this.view = createAnswer(message, this.actions());
    fill(this.place, view.element);
    await runInto(() => view, this.app.api, body, [message], abort.signal, loading(this.app, this.model.peek()));
    if (this.message !== message) return;
    this.running = false;
    view.end();
    reconcile(this.app, message);
    this.ended();
  }

  /** @param {number} axis seconds of both receipts */
  draw(axis) {
    this.axis = axis;
    this.view?.update();
  }

  /** @returns {Actions} */
  actions() {
    const nothing = () => {};
    return {
      branch: () => ({ number: 1, of: 1 }),
      turn: nothing,
      edit: nothing,
      results: nothing,
      again: () => void this.ask(this.text),
      goOn: (_, begun, ids) => void this.ask(this.text, begun, ids),
      copy: (message, form) => copyOf(this.app.api, form, message, this.body(message.parent)),
      running: () => this.running,
      last: ({ finish }) => finish !== "tool_calls",
      axis: () => this.axis,
      ...explaining(this.app),
      structured: () => isStructured(this.talk),
    };
  }
}

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const together = signal(false), busy = signal(false), found = h("ul");
  const told = h("section.differences", { hidden: true }, h("h2", "Differences"), found);
  const asked = h("p.asked-both", { hidden: true });
  const compared = () => {
    const sentences = sides.some((side) => side.running) ? [] : differences(sides[0].message, sides[1].message);
    told.hidden = sentences.length === 0;
    fill(found, sentences.map((text) => h("li", text)));
    if (told.hidden) return;
    const axis = Math.max(...sides.map((side) => lastTime(/** @type {Message} */ (side.message))));
    sides.forEach((side) => side.draw(axis));
    app.announce(sentences.join(" "));
  };
  const sides = ["A", "B"].map((name) => new Side(app, name, compared));
  let turn = 0, current = sides[0];
  const settings = createSettings((settled) => {
    Object.assign(current.talk, settled);
    show();
  });
  const show = () =>
    sides.forEach((side) =>
      fill(
        side.chips,
        chips(side.talk, (field) => {
          current = side;
          settings.open(side.talk, field);
        }),
      )
    );
  const send = async (/** @type {string} */ text) => {
    const mine = ++turn;
    busy.set(true);
    asked.hidden = false;
    asked.textContent = text;
    told.hidden = true;
    if (together.peek()) await Promise.all(sides.map((side) => side.ask(text)));
    else for (const side of sides) if (mine === turn) await side.ask(text);
    if (mine === turn) busy.set(false);
  };
  const stop = () => {
    turn++;
    sides.forEach((side) => side.abort.abort());
    busy.set(false);
  };
  const composer = createComposer({ send, stop, changed: () => {}, busy });
  fill(composer.chips, choice("Order", together, [[false, "In turn"], [true, "Together"]]));
  show();
  const pair = h("div.pair", sides.map((side) => side.element));
  const both = h("div.both", { tabindex: 0, role: "region", "aria-label": "Answers" }, asked, pair, told);
  root.append(
    h("main.compare", h("h1.hidden", "Compare"), both, composer.element, settings.dialog),
  );
  onEnd(stop);
}
