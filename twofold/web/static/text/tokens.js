// @ts-check
/** Tokens of an answer, coloured by when they came, how likely they were, or where they came from. */

import { fill, h } from "../core/dom.js";

/** @typedef {import("../chat/tree.js").Token} Token */
/** @typedef {"Plain" | "Time" | "Surprise" | "Origin"} Colour */

/** @type {readonly Colour[]} */
export const COLOURS = ["Plain", "Time", "Surprise", "Origin"];
/** @type {Record<string, string>} */
export const COLOUR_NOTES = {
  Surprise: "How improbable a token was, in bits",
  Origin: "Sampled, drafted, or forced by the grammar",
};
const LEVELS = ["a", "b", "c", "d", "e"];
const TIMES = [0.85, 1.25, 1.7, 2.3];
const BITS = [0.5, 1, 2, 4];
const ORIGINS = /** @type {Record<string, string>} */ ({ d: "", s: "s", g: "g" });
export const ORIGIN_NAMES = /** @type {Record<string, string>} */ ({
  d: "sampled",
  s: "drafted and accepted",
  g: "the only token that the grammar allowed",
});

/** Milliseconds between tokens; NaN for the first. @param {readonly Token[]} tokens */
export const gapsOf = (tokens) => tokens.map((token, index) => index > 0 ? token[2] - tokens[index - 1][2] : NaN);

/** @param {number[]} values */
export function medianOf(values) {
  const known = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  return known[known.length >> 1] ?? NaN;
}

/** @param {number} value @param {readonly number[]} limits */
const level = (value, limits) => LEVELS[limits.filter((limit) => value >= limit).length];

/**
 * The class of each token.
 * @param {readonly Token[]} tokens
 * @param {Colour} colour
 * @returns {string[]}
 */
export function classesOf(tokens, colour) {
  if (colour === "Origin") return tokens.map((token) => ORIGINS[token[4]] ?? "");
  if (colour === "Surprise") {
    return tokens.map(({ 1: logprob }) => logprob === null ? "" : level(-logprob / Math.LN2, BITS));
  }
  if (colour !== "Time") return tokens.map(() => "");
  const gaps = gapsOf(tokens), median = medianOf(gaps);
  return gaps.map((gap) => Number.isNaN(gap) || !(median > 0) ? "" : level(gap / median, TIMES));
}

/** The meaning of the colours, and what of the prompt was cached. @param {Colour} colour @param {any} [record] */
export function scale(colour, record) {
  const swatches = LEVELS.map((each) => h("i", { class: `t ${each}` }));
  if (colour === "Plain") return null;
  if (colour === "Origin") {
    const { prompt = 0, cached = 0 } = record?.tokens ?? {};
    const kinds = [["t s", ORIGIN_NAMES.s], ["t g", "forced by the grammar"]];
    const parts = [["k cached", `${cached} of the prompt cached`], ["k prefill", `${prompt - cached} fresh`]];
    const all = prompt > 0 ? [...kinds, ...parts] : kinds;
    return h("span.scale", all.map(([kind, name]) => [h("i", { class: kind }), name]));
  }
  const [label, low, high] = colour === "Time"
    ? ["Gap before a token, in medians", "½×", "3×"]
    : ["Surprise of a token, in bits", "0", "4+ bits"];
  return h("span.scale", { role: "img", "aria-label": label }, low, swatches, high);
}

/** The text that a token made. @param {Token} token */
const textOf = (token) => token[6] ?? token[0];

/**
 * Where the text of each token begins in the answer, and in the thinking before it; -1 if it is not there.
 * @param {import("../chat/tree.js").Message} message
 * @returns {{answer: number[], thinking: number[]}}
 */
export function startsOf({ tokens = [], content, begun = "", reasoning = "" }) {
  const all = tokens.map(textOf).join(""), thought = reasoning ? all.indexOf(reasoning) : -1;
  const after = thought < 0 ? 0 : thought + reasoning.length, zero = all.indexOf(content.slice(begun.length), after);
  const answer = [], thinking = [];
  let at = 0;
  for (const token of tokens) {
    answer.push(zero >= 0 && at >= zero ? begun.length + at - zero : -1);
    thinking.push(thought >= 0 && at >= thought && at < after ? at - thought : -1);
    at += textOf(token).length;
  }
  return { answer, thinking };
}

/**
 * Which parts of the nodes of a text each token is shown in. Null if the nodes show another text.
 * @param {readonly number[]} starts  of the tokens in the text, -1 for those that are not in it
 * @param {readonly [at: number, size: number][]} parts  of the text, those that are shown
 * @param {readonly number[]} lengths  of the nodes
 * @returns {{token: number, node: number, from: number, to: number}[] | null}
 */
export function piecesOf(starts, parts, lengths) {
  const total = (/** @type {readonly number[]} */ values) => values.reduce((sum, each) => sum + each, 0);
  if (total(parts.map((part) => part[1])) !== total(lengths)) return null;
  const found = [];
  let token = -1, node = 0, from = 0;
  for (let [at, size] of parts) {
    while (size > 0) {
      while (lengths[node] === from) (node++, from = 0);
      while (starts[token + 1] <= at) token++;
      const to = from + Math.min(size, lengths[node] - from, (starts[token + 1] ?? Infinity) - at);
      if (starts[token] >= 0) found.push({ token, node, from, to });
      at += to - from;
      size -= to - from;
      from = to;
    }
  }
  return found;
}

/**
 * What shows tokens: as spans, or as parts of a text.
 * @typedef {object} Painter
 * @property {(classes: readonly string[]) => void} paint
 * @property {(indices: readonly number[], name: "on" | "step") => void} mark
 * @property {(index: number) => Element | Range | null} place
 * @property {(event: MouseEvent) => number} at  the token at the pointer, or -1
 * @property {() => void} end
 */

/** Tokens as they are, in spans that replace what `root` shows. @param {Element} root @param {readonly Token[]} tokens @returns {Painter} */
export function spans(root, tokens) {
  const all = tokens.map((token, index) => h("span.t", { "data-n": index }, token[0]));
  fill(root, h("div.tokens", all));
  return {
    paint: (classes) => all.forEach((span, index) => (span.className = `t ${classes[index]}`.trim())),
    mark: (indices, name) => all.forEach((span, index) => span.classList.toggle(name, indices.includes(index))),
    place: (index) => all[index] ?? null,
    at: ({ target }) => Number(/** @type {HTMLElement} */ (target).dataset.n ?? -1),
    end: () => {},
  };
}

/**
 * Lets a token be chosen by a click or the arrow keys; returns what ends it.
 * @param {HTMLElement} root
 * @param {Painter} painter
 * @param {number} count
 * @param {(index: number) => void} choose  -1: none is chosen any more
 */
export function choosable(root, painter, count, choose) {
  const end = new AbortController(), { signal } = end;
  let on = -1;
  /** @param {number} index */
  const select = (index) => {
    on = index;
    painter.mark(index < 0 ? [] : [index], "on");
    choose(index);
  };
  root.addEventListener("keydown", (event) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (event.key === "Escape" && on >= 0) (event.stopPropagation(), select(-1));
    if (by === 0 || event.target !== root) return;
    event.preventDefault();
    select(Math.min(count - 1, Math.max(0, on + by)));
  }, { signal });
  root.addEventListener("click", (event) => {
    const inside = /** @type {Element} */ (event.target).closest("a, button"), index = inside ? -1 : painter.at(event);
    if (index >= 0) select(index === on ? -1 : index);
  }, { signal });
  const props = { tabindex: 0, role: "group", "aria-label": "Tokens of this answer; the arrow keys choose one" };
  for (const [name, value] of Object.entries(props)) root.setAttribute(name, String(value));
  return () => {
    end.abort();
    Object.keys(props).forEach((name) => root.removeAttribute(name));
  };
}
