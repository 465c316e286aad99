// @ts-check
/** What differs between two answers to one message, in sentences. */

import { figuresOf } from "../chat/receipt.js";
import { count, money, roughShare, seconds, tokens } from "../core/form.js";

/** @typedef {import("../chat/tree.js").Message} Message */

/** Ratios below it are not named: a repetition differs by as much. */
const NAMED = 1.05;

/**
 * @param {string} name
 * @param {number | null} a
 * @param {number | null} b
 * @param {(value: number) => string} form
 * @param {string} [word] what the smaller one is
 */
function ratio(name, a, b, form, word = "faster") {
  if (a === null || b === null || a <= 0 || b <= 0) return "";
  const times = Math.max(a, b) / Math.min(a, b), values = `A ${form(a)}, B ${form(b)}`;
  if (times < NAMED) return `${name}: no difference above 5% (${values}).`;
  return `${name}: ${a < b ? "A" : "B"} is ${times.toPrecision(2)}× ${word} (${values}).`;
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
  const same = cost && other && cost.currency === other.currency;
  return [
    ratio("Time to first token", x.ttft, y.ttft, seconds),
    cached(a, b),
    ratio("Time per output token", x.tpot, y.tpot, seconds),
    `Output: A ${tokens(a.record.tokens.output)}, B ${tokens(b.record.tokens.output)}.`,
    same ? ratio("Cost", cost.total, other.total, (value) => money(value, cost.currency), "cheaper") : "",
    texts(a.content, b.content),
  ].filter(Boolean);
}
