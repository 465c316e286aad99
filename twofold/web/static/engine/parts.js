// @ts-check
/** The parts of the engine view: its tools, panels, canvases and tables. */

import { fill, h } from "../core/dom.js";
import { count } from "../core/form.js";
import { button, choice, filePicker } from "../core/parts.js";
import { effect } from "../core/signal.js";
import { RIGHT } from "../draw/canvas.js";
import { stepAt } from "../live/state.js";
import { choose, move, pause, record, replay, watch } from "./model.js";

/** @typedef {import("./model.js").Model} Model */

const SPANS = /** @type {[number, string][]} */ ([[10_000, "10 s"], [60_000, "1 min"], [300_000, "5 min"]]);

/** @param {string} name @param {Record<string, string>} legend  what the colours mean */
export function panel(name, legend) {
  const note = h("span.faint");
  const key = h(
    "p.key",
    Object.entries(legend).map(([kind, text]) => h("span", h("i", { class: `k ${kind}` }), text)),
  );
  return { root: h("section.panel", { "aria-label": name }, h("h2", name, note), key), note };
}

/** A canvas; with a model, one along time, on which a step can be chosen. @param {string} kind @param {string} name @param {Model} [model] */
export function canvas(kind, name, model) {
  if (!model) return h("canvas", { class: kind, role: "img", "aria-label": name });
  const element = h("canvas", {
    class: kind,
    role: "img",
    tabindex: 0,
    "aria-label": name,
    onclick: (/** @type {MouseEvent} */ event) => {
      const { left, width } = element.getBoundingClientRect(), span = model.span.peek();
      choose(
        model,
        stepAt(model.live, model.now() - span + span * (event.clientX - left) / (width - RIGHT)),
      );
    },
    onkeydown: (/** @type {KeyboardEvent} */ event) => keys(event, model),
  });
  return element;
}

/** @param {KeyboardEvent} event @param {Model} model */
function keys(event, model) {
  const moves = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 });
  if (event.key in moves) move(model, moves[event.key]);
  else if (event.key === " ") pause(model);
  else if (event.key === "Escape") choose(model, null);
  else return;
  event.preventDefault();
}

/** @param {() => string | void} read @param {() => void} onclick @param {string} [label] */
function liveButton(read, onclick, label) {
  const made = button("", onclick, { "aria-label": label });
  effect(() => fill(made, read() ?? ""));
  return made;
}

/** @param {Model} model @param {(message: string) => void} complain @param {boolean} [few] */
export function tools(model, complain, few = false) {
  const now = h("p.now");
  effect(() => {
    model.words.get();
    const { queue, kv, steps } = model.live, last = steps.at(-1), total = kv ? kv[0] + kv[1] + kv[2] : 0;
    const used = kv && total ? ` · KV ${Math.round(100 * kv[2] / total)}%` : "";
    const step = last ? ` · step ${(last.ms / last.times).toFixed(1)} ms` : "";
    fill(now, h("b", count(queue[1])), " running · ", h("b", count(queue[0])), ` waiting${used}${step}`);
  });
  const file = filePicker({ accept: ".jsonl", "aria-label": "Recording" }, async ([chosen]) => {
    if (!chosen) return;
    complain("");
    try {
      replay(model, await chosen.text());
    } catch (error) {
      complain(/** @type {Error} */ (error).message);
    }
  });
  const recording = liveButton(() => model.recorded.get() ? "Save the recording" : "Record", () => record(model));
  const back = liveButton(() => "Back to the server", () => watch(model));
  effect(() => {
    recording.hidden = model.replays.get();
    back.hidden = !model.replays.get();
  });
  return h(
    "div.tools",
    now,
    choice("Time shown", model.span, SPANS),
    liveButton(() => model.paused.get() === null ? "Pause" : "Continue", () => pause(model)),
    liveButton(() => "◀", () => move(model, -1), "Step back"),
    liveButton(() => "▶", () => move(model, 1), "Step forward"),
    few ? [] : [recording, back, liveButton(() => "Open a recording", () => file.click()), file],
  );
}
