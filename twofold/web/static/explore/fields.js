// @ts-check
/**
 * Fields of a form that keep their values in the URL: texts, choices, and numbers with a slider. And `asking`: a part
 * that asks the server again whenever they change, and shows what comes.
 */

import { ApiError } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { count, number } from "../core/form.js";
import { faultBox } from "../core/parts.js";
import { onEnd } from "../core/signal.js";
import { place, valueAt } from "../draw/scale.js";

/**
 * @typedef {Record<string, string>} State
 * @typedef {{state: () => State, change: (more: Record<string, string | null>) => void, wrote: (state: State) => boolean}} Form
 *   null takes a field out; `wrote`: whether a state came from the fields, which show another one only if made anew
 */

let fields = 0;

/**
 * A label and its control.
 * @param {string} label
 * @param {(id: string) => any} make
 * @param {string} [kind]
 */
export function field(label, make, kind = "") {
  const id = `explore-${++fields}`;
  return h("div", { class: `field ${kind}`.trim() }, h("label", { for: id }, label), make(id));
}

/**
 * A text; `known` is a list to search in, `several` says that the text has parts with commas.
 * @param {Form} form
 * @param {string} name
 * @param {string} label
 * @param {{hint?: string, known?: readonly string[], several?: boolean}} [options]
 */
export function textField(form, name, label, { hint = "", known = [], several = false } = {}) {
  const list = h("datalist");
  const offer = (/** @type {string} */ text) => {
    const before = several ? text.slice(0, text.lastIndexOf(",") + 1) : "";
    fill(list, known.map((each) => h("option", { value: before + each })));
  };
  return field(label, (id) => {
    list.id = `${id}-known`;
    const box = h("input", {
      id,
      value: form.state()[name] ?? "",
      placeholder: hint,
      list: known.length ? list.id : null,
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      oninput: () => several && offer(box.value),
      onchange: () => form.change({ [name]: box.value.trim() || null }),
    });
    offer(box.value);
    return [box, known.length > 0 && list];
  }, "text");
}

/**
 * One of a few values; the first is the default, which the URL omits.
 * @param {Form} form
 * @param {string} name
 * @param {string} label
 * @param {readonly (readonly [string, string])[]} choices  value and words
 */
export function choiceField(form, name, label, choices) {
  const now = form.state()[name] ?? choices[0][0];
  return field(label, (id) =>
    h(
      "select",
      {
        id,
        onchange: (/** @type {any} */ event) =>
          form.change({ [name]: event.target.value === choices[0][0] ? null : event.target.value }),
      },
      choices.map(([value, words]) => h("option", { value, selected: value === now }, words)),
    ));
}

/**
 * A number with a slider; the slider is logarithmic from 1 on.
 * @param {Form} form
 * @param {string} name
 * @param {string} label
 * @param {{low?: number, high: number, start: number | null, whole?: boolean, hint?: string}} range  `start`: the default,
 *   if there is one; `hint`: what else holds
 */
export function numberField(form, name, label, { low = 1, high, start, whole = true, hint = "any" }) {
  const steps = 240;
  const scale = /** @type {import("../draw/scale.js").Scale} */ ({ kind: low > 0 ? "log" : "linear", low, high });
  const given = () => form.state()[name];
  const at = (/** @type {number} */ value) => steps * place(scale, Math.max(value, low));
  const valueOf = (/** @type {number} */ on) => {
    const value = valueAt(scale, on / steps);
    return whole ? rounded(value) : Number(value.toPrecision(2));
  };
  const words = (/** @type {number} */ value) => whole ? count(value) : number(value);
  const set = (/** @type {number} */ value) => form.change({ [name]: value === start ? null : String(value) });
  const now = () => Number(given() ?? start ?? low);
  const slider = h("input", {
    type: "range",
    min: 0,
    max: steps,
    "aria-label": `${label}, slider`,
    "aria-valuetext": words(now()),
    oninput: () => {
      const before = now(), step = Number(slider.value) - at(before);
      let value = valueOf(Number(slider.value));
      if (whole && value === before) value = Math.max(low, Math.min(high, before + Math.sign(step))); // one key press
      slider.value = String(at(value));
      box.value = String(value);
      slider.setAttribute("aria-valuetext", words(value));
      set(value);
    },
  });
  slider.value = String(at(now()));
  /** @type {HTMLInputElement} */
  let box;
  return field(label, (id) => {
    box = h("input", {
      id,
      type: "number",
      step: "any",
      min: 0,
      value: given() ?? (start === null ? "" : String(start)),
      placeholder: start === null ? hint : "",
      onchange: () => {
        if (box.value === "") return form.change({ [name]: null });
        slider.value = String(at(Number(box.value)));
        set(Number(box.value));
      },
    });
    return [box, slider];
  }, "number");
}

/** Two significant digits. @param {number} value */
function rounded(value) {
  return value < 20 ? Math.round(value) : Number(value.toPrecision(2));
}

/** @param {string | undefined} text */
export const numberOf = (text) => text === undefined || text === "" ? undefined : Number(text);

/** The parts of a list with commas. @param {string | undefined} text */
export const listOf = (text) => (text ?? "").split(",").map((each) => each.trim()).filter(Boolean);

const PAUSE_MS = 150;

/**
 * @param {HTMLElement} root
 * @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {(found: any) => import("../core/dom.js").Child} show
 * @param {(text: string) => void} announce
 * @returns {() => void} asks, once nothing has changed for a moment
 */
export function asking(root, ask, show, announce) {
  let first = true;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let running = new AbortController();
  const run = async () => {
    running.abort();
    const mine = running = new AbortController();
    root.setAttribute("aria-busy", "true");
    if (!root.firstChild) fill(root, h("p.faint", "Calculating …"));
    try {
      const found = await ask(mine.signal);
      if (mine.signal.aborted) return;
      fill(root, show(found));
      if (!first) announce("The result has changed.");
      first = false;
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      fill(root, faultOf(error, run));
    } finally {
      if (!mine.signal.aborted) root.setAttribute("aria-busy", "false");
    }
  };
  onEnd(() => {
    clearTimeout(timer);
    running.abort();
  });
  return () => {
    clearTimeout(timer);
    timer = setTimeout(run, first ? 0 : PAUSE_MS);
  };
}

/** What went wrong, and a way to try again if that can help. @param {ApiError} error @param {() => void} again */
export function faultOf(error, again) {
  const { message, status, retryAfterS } = error, retryAt = retryAfterS && Date.now() / 1e3 + retryAfterS;
  return faultBox({ message, status, retryAt }, again);
}
