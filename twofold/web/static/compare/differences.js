// @ts-check
/** What differs between two answers to one message, in sentences. */

import { figuresOf } from "../chat/receipt.js";
import { count, money, roughShare, seconds, tokens } from "../core/form.js";

/** @typedef {import("../chat/tree.js").Message} Message */

/** Differences below it are not named. */
const NAMED = 0.05;
/** How many standard deviations are noise. */
const DEVIATIONS = 2;

/**
 * @param {string} name
 * @param {number | null} a
 * @param {number | null} b
 * @param {(value: number) => string} form
 * @param {number} [noise]  differences below it are none
 * @param {string} [word] what the smaller one is
 */
function ratio(name, a, b, form, noise = NAMED, word = "faster") {
  if (a === null || b === null || a <= 0 || b <= 0) return "";
  const times = Math.max(a, b) / Math.min(a, b), values = `A ${form(a)}, B ${form(b)}`;
  if (times < 1 + noise) return `${name}: no difference above ${roughShare(noise)} (${values}).`;
  return `${name}: ${a < b ? "A" : "B"} is ${times.toPrecision(2)}× ${word} (${values}).`;
}

/** The variance of an answer's gaps between tokens, by their squared mean, and their number. @param {Message} message */
function spread({ record }) {
  const times = /** @type {number[]} */ (record.timeline?.token_ms?.[0] ?? []);
  const gaps = times.slice(1).map((time, index) => time - times[index]), mean = sum(gaps) / gaps.length;
  return { number: gaps.length, square: sum(gaps.map((gap) => (gap / mean - 1) ** 2)) / (gaps.length - 1) };
}

/** @param {number[]} values */
const sum = (values) => values.reduce((all, each) => all + each, 0);

/** Which differences in time are noise: what one step varies by, and what the mean of all steps does. @param {Message} a @param {Message} b */
function noiseOf(a, b) {
  const both = [spread(a), spread(b)];
  const [one, mean] = [both.map(({ square }) => square), both.map(({ square, number }) => square / number)];
  const [ttft, tpot] = [one, mean].map((squares) => Math.max(NAMED, DEVIATIONS * Math.sqrt(sum(squares))));
  if (!Number.isFinite(ttft)) {
    return {
      ttft: NAMED,
      tpot: NAMED,
      said: "One run each, too short to tell which differences are noise.",
    };
  }
  const said = `One run each; differences under ${roughShare(ttft)} (time to first token) and ` +
    `${roughShare(tpot)} (time per output token) are noise here.`;
  return { ttft, tpot, said };
}

/** @param {Message} a @param {Message} b */
function cached({ record: a }, { record: b }) {
  const [x, y] = [a, b].map(({ tokens: { prompt, cached: of } }) => of / Math.max(1, prompt));
  if (Math.abs(x - y) < 0.01) return "";
  const parts = [x, y].map((value) => roughShare(value));
  return `Cached part of the prompt: A ${parts[0]}, B ${parts[1]}. Give each a private cache to compare without it.`;
}

/** @param {string} a @param {string} b */
function texts(a, b) {
  if (a === b) return "The texts are the same.";
  const one = [...a], other = [...b], at = one.findIndex((each, index) => each !== other[index]);
  return `The texts differ from character ${count((at < 0 ? one.length : at) + 1)} on.`;
}

/** @param {Message} message */
const priceOf = ({ record }) => record.cost ?? record.at_prices?.[0] ?? null;

/** Sentences; none before both have ended with a record. @param {Message | null} a @param {Message | null} b @returns {string[]} */
export function differences(a, b) {
  if (!a?.record?.prompts.length || !b?.record?.prompts.length) return [];
  const x = figuresOf(a.record), y = figuresOf(b.record), [cost, other] = [priceOf(a), priceOf(b)];
  const same = cost && other && cost.currency === other.currency, noise = noiseOf(a, b);
  return [
    ratio("Time to first token", x.ttft, y.ttft, seconds, noise.ttft),
    cached(a, b),
    ratio("Time per output token", x.tpot, y.tpot, seconds, noise.tpot),
    noise.said,
    `Output: A ${tokens(a.record.tokens.output)}, B ${tokens(b.record.tokens.output)}.`,
    same ? ratio("Cost", cost.total, other.total, (value) => money(value, cost.currency), NAMED, "cheaper") : "",
    texts(a.content, b.content),
  ].filter(Boolean);
}
