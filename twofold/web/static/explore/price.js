// @ts-check
/** Price: a workload at an API and on own machines, and when caching a prompt's beginning pays. */

import { h } from "../core/dom.js";
import { count, money, number, seconds, share } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { asking, choiceField, given, numberField, numberOf, textField } from "./fields.js";

/** @typedef {import("./fields.js").Form} Form */

const TTLS = /** @type {const} */ ([["5m", "5 minutes"], ["1h", "1 hour"]]);
const WORDS = /** @type {Record<string, string>} */ (Object.fromEntries(TTLS));
const TTL_S = /** @type {Record<string, number>} */ ({ "5m": 300, "1h": 3600 });
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
    textField(form, "hardware", "Own hardware", { hint: "none", known: ["h100", "h200", "l40s", "l4", "a10g"] }),
    textField(form, "own", "with the model", { hint: "llama-3-70b" }),
    numberField(form, "tp", "Devices", { high: 16, start: 1 }),
    numberField(form, "rent", "Dollars per hour", { high: 100, start: null, whole: false }),
  ];
}

/** @param {HTMLElement} root @param {import("../views.js").App} app @param {Form} form */
export function pricePart(root, app, form) {
  const ask = (/** @type {AbortSignal} */ signal) => {
    const s = form.state();
    const own = s.hardware &&
      given({ hardware: s.hardware, model: s.own, tp: numberOf(s.tp), price_per_hour: numberOf(s.rent) });
    const body = given({
      model: s.api || API_MODELS[0],
      input_tokens: numberOf(s.input),
      output_tokens: numberOf(s.output),
      cached: numberOf(s.cached),
      requests_per_day: numberOf(s.day),
      ttl: s.ttl,
      own: own || undefined,
    });
    return app.api.post("/v1/twofold/price", body, { signal });
  };
  return asking(root, ask, pricesOf, app.announce);
}

/**
 * What a request saves by a cache whose entries live for `ttl` seconds after each use, with random arrivals `gap`
 * seconds apart, and the gap up to which it pays. In units of the price of the cached tokens.
 * @param {number} write  price of writing a token to the cache, in prices of input
 * @param {number} read
 * @param {number} ttl
 */
export function caching(write, read, ttl) {
  const most = write <= 1 ? 1 : (1 - read) / (write - read);
  return {
    saved: (/** @type {number} */ gap) => {
      const misses = Math.exp(-ttl / gap);
      return 1 - misses * write - (1 - misses) * read;
    },
    longestGap: most >= 1 ? Infinity : most <= 0 ? 0 : -ttl / Math.log(most),
    reads: read < 1 ? Math.max(0, (write - 1) / (1 - read)) : Infinity,
  };
}

/** @param {any} found */
function pricesOf(found) {
  const { per_million: prices, own } = found, gap = 86_400 / found.workload.requests_per_day;
  const rows = /** @type {any[]} */ (found.options).map((each) => [
    each.ttl ? `cached for ${WORDS[each.ttl]}` : "without a cache",
    ...[each.per_request, each.per_day, each.per_month].map((amount) => money(amount)),
  ]);
  if (own) {
    rows.push([`own: ${own.devices} × ${own.machine}, ${own.model}`, money(own.per_request), "", money(own.per_month)]);
  }
  const kinds = Object.entries(prices).map(([kind, amount]) => `${kind.replaceAll("_", " ")} ${money(amount)}`);
  return [
    h("h2", {}, found.model),
    wideTable("Cost", ["option", "per request", "per day", "per month"], rows),
    h("p", { class: "faint" }, `Per million tokens: ${kinds.join(", ")}. Prices of ${found.prices_from}.`),
    own ? h("p", {}, ownWords(own)) : null,
    found.caching.state === "too short"
      ? h("p", { class: "fault" }, `The cache takes at least ${count(found.caching.least_tokens)} tokens.`)
      : null,
    prices.input && found.caching.state === "on"
      ? cachingPart(found, gap)
      : h("p", { class: "faint" }, "Enter the tokens of a shared prefix to see when caching it pays."),
  ];
}

/** @param {any} found @param {number} gap */
function cachingPart({ per_million: prices, workload }, gap) {
  const unit = workload.prefix_tokens * prices.input / 1e6;
  const gaps = Array.from({ length: 81 }, (_, i) => 10 ** (i / 20));
  /** @type {import("../draw/chart.js").Mark[]} */
  const marks = [
    { mark: "Guide", axis: "y", value: 0, text: "no cache" },
    { mark: "Guide", axis: "x", value: gap / 60, text: "here" },
  ];
  const words = Object.keys(TTL_S).map((ttl, series) => {
    const cost = caching(prices[`cache_write_${ttl}`] / prices.input, prices.cache_read / prices.input, TTL_S[ttl]);
    const longest = cost.longestGap, saved = cost.saved(gap);
    marks.push({ mark: "Line", series, label: WORDS[ttl], points: gaps.map((s) => [s / 60, cost.saved(s) * unit]) });
    if (Number.isFinite(longest)) {
      marks.push({ mark: "Guide", axis: "x", value: longest / 60, text: `${number(longest / 60)} min` });
    }
    return h(
      "li",
      {},
      `Kept for ${WORDS[ttl]}: a write has paid after ${
        number(cost.reads)
      } reads; it pays while requests are less than `,
      h("b", {}, duration(longest)),
      ` apart. Here they are ${duration(gap)} apart: it saves ${money(saved * unit)} a request, ${share(saved)} of `,
      "the price of the prefix.",
    );
  });
  const chart = chartView({
    title: "Savings of a cached prefix",
    note: "per request, by mean gap between requests (random arrivals)",
    x: { label: "minutes between requests", kind: "log", form: "number", tight: true },
    y: { label: "dollars saved", form: "money" },
    marks,
  });
  return [h("ul", { class: "notes" }, words), chart];
}

/** @param {number} s */
const duration = (s) =>
  s < 120 ? seconds(s) : s < 7200 ? `${number(s / 60)} min` : Number.isFinite(s) ? `${number(s / 3600)} h` : "any time";

/** @param {any} own */
function ownWords(own) {
  const from = own.cheaper_from_requests_per_day;
  const words = from === null
    ? "The API is cheaper at any volume: one replica"
    : `Own machines are cheaper from ${count(from)} requests a day on; one replica`;
  return `${words} costs ${money(own.per_hour)} an hour and serves ${
    count(own.requests_per_day_a_replica)
  } requests a day.`;
}
