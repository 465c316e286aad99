// @ts-check
/** Compare: one message to two models or settings, side by side; their receipts share an axis of time. */

import { Asker } from "../chat/asker.js";
import { createComposer } from "../chat/composer.js";
import { createAnswer } from "../chat/messages.js";
import { lastTime } from "../chat/receipt.js";
import { chips, createSettings } from "../chat/settings.js";
import { isUnanswered } from "../chat/tree.js";
import { fill, h } from "../core/dom.js";
import { choice } from "../core/parts.js";
import { onEnd, signal } from "../core/signal.js";
import { createModelPicker } from "../shell/models.js";
import { differences } from "./differences.js";

/** @typedef {import("../chat/tree.js").Message} Message */
/** @typedef {import("../chat/tree.js").Conversation} Conversation */

/** One of the two: a model, settings, and the answer. */
class Side extends Asker {
  /** @param {import("../views.js").App} app @param {string} name @param {() => void} compared */
  constructor(app, name, compared) {
    super(app, { model: signal(app.model.peek()) });
    this.compared = compared;
    /** @type {Message | null} */
    this.message = null;
    this.chips = h("span.chips");
    this.place = h("div", h("p.faint", "Nothing sent yet."));
    const kept = { get: app.model.peek, set: () => {} };
    const picker = createModelPicker(this.model, app.server, `Model of ${name}`, kept);
    this.element = h(
      "section",
      { "aria-label": name },
      h("div.side-head", h("h2", name), picker, this.chips),
      this.place,
    );
  }

  /** Asks anew. @param {string} text */
  ask(text) {
    Object.assign(this.talk.peek(), { messages: [], chosen: {} });
    return this.send(text, "");
  }

  /** @override @param {Message[]} messages */
  began([message]) {
    const view = createAnswer(message, this);
    this.message = message;
    this.axis = 0;
    this.shown = new Map([[message.id, view]]);
    fill(this.place, view.element);
  }

  /** @override @param {Conversation} talk @param {Message} message */
  ended(talk, message) {
    if (this.message !== message) return;
    super.ended(talk, message);
    this.compared();
  }

  /** Whether there is nothing to read. */
  get empty() {
    return this.message !== null && isUnanswered(this.message);
  }

  /** @param {number} axis seconds of both receipts */
  draw(axis) {
    this.axis = axis;
    for (const view of this.shown.values()) view.update();
  }

  /** @override */
  branch() {
    return { number: 1, of: 1 };
  }

  /** Calls are only looked at. @override @param {Message} message */
  isLast({ finish }) {
    return finish !== "tool_calls";
  }
}

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const together = signal(false), busy = signal(false), found = h("ul");
  const told = h("section.differences", { hidden: true }, h("h2", "Differences"), found);
  const asked = h("p.asked-both", { hidden: true });
  const compared = () => {
    const sentences = sides.some((side) => side.running.length > 0)
      ? []
      : differences(sides[0].message, sides[1].message);
    told.hidden = sentences.length === 0;
    fill(found, sentences.map((text) => h("li", text)));
    if (told.hidden) return;
    const axis = Math.max(...sides.map((side) => lastTime(/** @type {Message} */ (side.message))));
    sides.forEach((side) => side.draw(axis));
    app.announce(sentences.join(" "));
  };
  const sides = ["A", "B"].map((name) => new Side(app, name, compared));
  let turn = 0, current = sides[0];
  const settings = createSettings(app, (settled) => {
    Object.assign(current.talk.peek(), settled);
    show();
  });
  const show = () =>
    sides.forEach((side) =>
      fill(
        side.chips,
        chips(side.talk.peek(), (field) => {
          current = side;
          settings.open(side.talk.peek(), field);
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
    if (sides.every((side) => side.empty)) composer.giveBack(text);
  };
  const stop = () => {
    turn++;
    sides.forEach((side) => side.stop());
    busy.set(false);
  };
  const composer = createComposer({ send, stop, changed: () => {}, busy });
  sides.forEach((side) => (side.takeBack = composer.takeBack));
  fill(composer.chips, choice("Order", together, [[false, "In turn"], [true, "Together"]]));
  show();
  const pair = h("div.pair", sides.map((side) => side.element));
  const both = h("div.both", { tabindex: 0, role: "region", "aria-label": "Answers" }, asked, pair, told);
  root.append(
    h("main.compare", h("h1.hidden", "Compare"), both, composer.element, settings.dialog),
  );
  onEnd(stop);
}
