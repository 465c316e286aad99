// @ts-check
/** Price: a workload at an API and on own machines, and when caching a prompt's beginning pays. */

import { given } from "../core/api.js";
import { h } from "../core/dom.js";
import { money } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { choiceField, numberField, numberOf, textField } from "./fields.js";
import { MODELS, RENTED } from "./levers.js";

/** @typedef {import("./fields.js").Form} Form */

const TTLS = /** @type {const} */ ([["5m", "5 minutes"], ["1h", "1 hour"]]);
const WORDS = /** @type {Record<string, string>} */ (Object.fromEntries(TTLS));
const API_MODELS = ["claude-sonnet-4-6", "claude-opus-4-6", "openai/gpt-5", "google/gemini-2.5-pro"];

/** @param {Form} form */
export function priceFields(form) {
  return [
    textField(form, "api", "API model", { hint: API_MODELS[0], known: API_MODELS }),
    numberField(form, "input", "Prompt tokens", { high: 200_000, start: 1000 }),
    numberField(form, "cached", "Shared prefix tokens", { low: 0, high: 100_000, start: 0 }),
    numberField(form, "output", "Output tokens", { high: 16_000, start: 300 }),
    numberField(form, "day", "Requests per day", { high: 10_000_000, start: 1000 }),
    choiceField(form, "ttl", "Kept for", TTLS),
    textField(form, "hardware", "Own hardware", { hint: "none", known: RENTED }),
    textField(form, "own", "with the model", { hint: "llama-3-70b", known: MODELS }),
    numberField(form, "tp", "Devices", { high: 16, start: 1 }),
    numberField(form, "rent", "Dollars per hour", { high: 100, start: null, whole: false }),
  ];
}

/** @param {import("./fields.js").State} s */
export function priceBody(s) {
  const own = { hardware: s.hardware, model: s.own, tp: numberOf(s.tp), price_per_hour: numberOf(s.rent) };
  return given({
    model: s.api || API_MODELS[0],
    input_tokens: numberOf(s.input),
    output_tokens: numberOf(s.output),
    cached: numberOf(s.cached),
    requests_per_day: numberOf(s.day),
    ttl: s.ttl,
    own: s.hardware ? given(own) : undefined,
  });
}

/** @param {any} found */
export function pricesOf({ model, options, per_million: prices, prices_from: source, own, notes, caching, chart }) {
  const rows = /** @type {any[]} */ (options).map(({ ttl, ...each }) => [
    ttl ? `cached for ${WORDS[ttl]}` : "without a cache",
    ...[each.per_request, each.per_day, each.per_month].map((amount) => money(amount)),
  ]);
  if (own) {
    rows.push([`own: ${own.devices} × ${own.machine}, ${own.model}`, money(own.per_request), "", money(own.per_month)]);
  }
  const kinds = Object.entries(prices).map(([kind, amount]) => `${kind.replaceAll("_", " ")} ${money(amount)}`);
  return [
    h("h2", model),
    wideTable("Cost", ["option", "per request", "per day", "per month"], rows),
    h("p.faint", `Per million tokens: ${kinds.join(", ")}. Prices of ${source}.`),
    h("ul.notes", [...notes, own?.note].filter(Boolean).map((/** @type {string} */ each) => h("li", each))),
    caching.state === "off" && h("p.faint", "Enter the tokens of a shared prefix to see when caching it pays."),
    chart && chartView(chart),
  ];
}
