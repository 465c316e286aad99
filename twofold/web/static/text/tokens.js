// @ts-check
/** Tokens of an answer, coloured by when they came, how likely they were, or where they came from. */

import { h } from "../core/dom.js";

/** @typedef {import("../chat/tree.js").Token} Token */
/** @typedef {"Plain" | "Time" | "Surprise" | "Origin"} Colour */

/** @type {readonly Colour[]} */
export const COLOURS = ["Plain", "Time", "Surprise", "Origin"];
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

/** The meaning of the colours. @param {Colour} colour */
export function scale(colour) {
  const swatches = LEVELS.map((each) => h("i", { class: `t ${each}` }));
  if (colour === "Plain") return null;
  if (colour === "Origin") {
    return h("span", { class: "scale" }, h("i", { class: "t s" }), "guessed", h("i", { class: "t g" }), "forced");
  }
  const [label, low, high] = colour === "Time"
    ? ["Gap before a token, in medians", "½×", "3×"]
    : ["Surprise of a token, in bits", "0", "4+ bits"];
  return h("span", { class: "scale", role: "img", "aria-label": label }, low, swatches, high);
}

/**
 * Tokens as they are, one of which can be chosen by a click or the arrow keys.
 * @param {readonly Token[]} tokens
 * @param {Colour} colour
 * @param {(index: number, element: HTMLElement | null) => void} choose  null: none is chosen any more
 */
export function tokenView(tokens, colour, choose) {
  const classes = classesOf(tokens, colour);
  const spans = tokens.map((token, index) =>
    h("span", { class: `t ${classes[index]}`.trim(), "data-n": index }, token[0])
  );
  let on = -1;
  /** @param {number} index */
  const select = (index) => {
    spans[on]?.classList.remove("on");
    on = index;
    spans[on]?.classList.add("on");
    spans[on]?.scrollIntoView({ block: "nearest" });
    choose(on, spans[on] ?? null);
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (event.key === "Escape" && on >= 0) (event.stopPropagation(), select(-1));
    if (by === 0) return;
    event.preventDefault();
    select(Math.min(spans.length - 1, Math.max(0, on + by)));
  };
  /** @param {MouseEvent} event */
  const click = (event) => {
    const { n } = /** @type {HTMLElement} */ (event.target).dataset;
    if (n !== undefined) select(Number(n) === on ? -1 : Number(n));
  };
  const label = "Tokens of this answer; the arrow keys choose one";
  return h(
    "div",
    { class: "tokens", tabindex: 0, role: "group", "aria-label": label, onkeydown: key, onclick: click },
    spans,
  );
}
