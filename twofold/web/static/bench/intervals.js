// @ts-check
/** Compares two results as `twofold bench compare` does (bench/compare.py): each figure is better, worse, or noise. */

import { tokens } from "../core/form.js";
import { figure, pointOf } from "./read.js";
import { blockLength, meanOf, medianOf, quantileOf, ratioInterval, resampled, seriesOf } from "./resample.js";

/**
 * @typedef {import("./resample.js").Series} Series
 * @typedef {{measure: string, statistic: string, a: number, b: number, ratio: number | null,
 *   interval: {low: number, high: number} | null, verdict: "better" | "worse" | "noise" | "unknown"}} Row
 * @typedef {{n: number, block: number, series: Record<string, Series>}} Side
 */

const CONFIDENCE = 0.99;
const MIN_REQUESTS = 10, SLICES = 48;
/** Percentiles, and the minimum number of requests for each. */
const PERCENTILES = /** @type {const} */ ([["p50", 0.5, 1], ["p90", 0.9, 30], ["p99", 0.99, 300]]);
const MEAN = /** @type {const} */ ([["mean", null]]);
const FIGURES = ["ttft_s", "ttft_sent_s", "tpot_s", "e2e_s"];
const FAILURES = ["refused", "failed", "broken", "late"];

/**
 * The figures of both at each load that they have in common, and the loads that only one has (`alone`). Rejects with an
 * Error that says why there are none, or if `stop` is aborted.
 * @param {any} a  a document
 * @param {any} b
 * @param {AbortSignal} [stop]
 * @returns {Promise<{pairs: {point: string, rows: Row[]}[], alone: string[]}>}
 */
export async function compared(a, b, stop) {
  const limits = objectivesOf([...a.runs, ...b.runs]), { both, alone } = paired(a, b), pairs = [];
  for (const [point, one, two] of both) {
    const sides = [sideOf(one, "first", limits), sideOf(two, "second", limits)];
    pairs.push({ point, rows: await figuresOfBoth(sides[0], sides[1], stop) });
  }
  return { pairs, alone };
}

/** The runs at common loads. @param {any} a @param {any} b @returns {{both: [string, any[], any[]][], alone: string[]}} */
function paired(a, b) {
  const [first, second] = [a, b].map(({ runs }) => Map.groupBy(runs, pointOf));
  if (first.size === 1 && second.size === 1) {
    const [[point, one]] = first, [[other, two]] = second;
    return { both: [[point === other ? point : "", one, two]], alone: [] };
  }
  const alone = [...new Set([...first.keys()]).symmetricDifference(second)];
  const both = [...first].flatMap(([point, runs]) => second.has(point) ? [[point, runs, second.get(point)]] : []);
  if (!both.length) {
    throw new Error("The results have no rate or concurrency in common. Measure both at the same rates.");
  }
  return { both: /** @type {any} */ (both), alone };
}

/** Limits in seconds, of the first summary that has any. @param {any[]} runs @returns {[string, number][] | null} */
function objectivesOf(runs) {
  const found = runs.map((run) => run.summary?.goodput?.objectives).find((each) => Object.keys(each ?? {}).length);
  return found ? ["ttft", "tpot", "itl", "e2e"].flatMap((name) => found[name] ? [[name, found[name]]] : []) : null;
}

/** @param {any[]} runs @param {string} name @param {[string, number][] | null} limits @returns {Side} */
function sideOf(runs, name, limits) {
  const parts = runs.map((run) => [run, run.requests.filter((/** @type {any} */ each) => each.measured)])
    .filter(([, part]) => part.length);
  const asked = parts.flatMap(([run, part]) => part.map((/** @type {any} */ each) => [run, each]));
  if (asked.length < MIN_REQUESTS) {
    throw new Error(
      `The ${name} result has ${tokens(asked.length, "measured request")}; intervals need at least ${MIN_REQUESTS}.`,
    );
  }
  /** @param {(run: any, request: any) => number | null} of */
  const each = (of) => seriesOf(asked.map(([run, request]) => of(run, request)));
  /** @type {Record<string, Series>} */
  const series = Object.fromEntries(FIGURES.map((measure) => [measure, each((...one) => failing(...one, measure))]));
  const gaps = asked.map(([, { gaps_us }]) => gaps_us ?? []), flows = parts.map(([run, part]) => flowsOf(run, part));
  if (asked.some(([, { gaps_us }]) => gaps_us)) {
    const owner = Int32Array.from(gaps.flatMap((own, at) => own.map(() => at)));
    series.itl_s = { values: Float64Array.from(gaps.flat(), (gap) => gap * 1e-6), owner };
  }
  series.requests_per_s = seriesOf(flows.flatMap(({ requests }) => requests));
  series.output_tokens_per_s = seriesOf(flows.flatMap(({ tokens }) => tokens));
  series.answered_share = each((_, { outcome }) => Number(outcome === "ok"));
  if (limits) series.attainment = each((...one) => isMet(...one, limits));
  const { owner, values } = series.ttft_s, n = asked.length;
  const order = new Float64Array(n).fill(values.length ? medianOf(values) : 0);
  owner.forEach((request, at) => order[request] = values[at]);
  return { n, block: blockLength(order), series };
}

/** A measure, which is infinite if its request failed. @param {any} run @param {any} request @param {string} measure @returns {number | null} */
function failing(run, request, measure) {
  const { outcome } = request;
  const failed = FAILURES.includes(outcome) || (outcome === "unfinished" && !run.interrupted);
  return request[measure] ?? (failed ? Infinity : null);
}

/** Whether a request met the objectives: 1 or 0; null if that is unknown. @param {any} run @param {any} request @param {[string, number][]} limits */
function isMet(run, request, limits) {
  const { outcome, chunks, gaps_us: gaps } = request;
  if (run.interrupted && outcome === "unfinished") return null;
  if (outcome !== "ok" || !chunks) return 0;
  if (!gaps && limits.some(([name]) => name === "itl")) return null;
  const longest = /** @type {number[]} */ (gaps ?? []).reduce((most, gap) => Math.max(most, gap), 0) * 1e-6;
  const met = limits.every(([name, limit]) => ((name === "itl" ? longest : request[`${name}_s`]) ?? 0) <= limit);
  return Number(met);
}

/** The window of steady rates, or if it is empty the time of all requests. @param {any} run @param {any[]} measured @returns {[number, number]} */
function windowOf(run, measured) {
  const start = figure(run, "measured", "from_s"), end = figure(run, "measured", "until_s");
  if (start !== null && end !== null && end > start) return [start, end];
  return [
    measured.reduce((least, each) => Math.min(least, each.due_s), Infinity),
    measured.reduce((most, each) => Math.max(most, each.ended_s || each.due_s), -Infinity),
  ];
}

/** Rates of complete responses and of their tokens, spread evenly over each, in slices of a run. @param {any} run @param {any[]} measured */
function flowsOf(run, measured) {
  const [from, until] = windowOf(run, measured), step = (until - from) / SLICES;
  const edges = Array.from({ length: SLICES + 1 }, (_, at) => at === SLICES ? until : from + at * step);
  const slice = Math.max(edges[1] - edges[0], 1e-9);
  const done = /** @type {any[]} */ (run.requests).filter((each) => each.outcome === "ok");
  const ended = edges.map((edge) => done.filter((each) => each.ended_s !== null && each.ended_s < edge).length);
  const received = edges.map((edge) =>
    done.reduce((sum, { first_s: first, last_s: last, output_tokens, chunks }) => {
      if (first === null || last === null) return sum;
      const part = Math.min(1, Math.max(0, (edge - first) / Math.max(last - first, 1e-9)));
      return sum + part * (output_tokens || chunks);
    }, 0)
  );
  /** @param {number[]} sums */
  const rates = (sums) => sums.slice(1).map((sum, at) => (sum - sums[at]) / slice);
  return { requests: rates(ended), tokens: rates(received) };
}

/** @param {Side} a @param {Side} b @param {AbortSignal} [stop] @returns {Promise<Row[]>} */
async function figuresOfBoth(a, b, stop) {
  /** @type {Row[]} */
  const rows = [];
  for (const name in a.series) {
    const pair = [a, b].map(({ series }) => series[name]);
    const n = Math.min(...pair.map((series) => series ? new Set(series.owner).size : 0));
    const columns = isTime(name) ? PERCENTILES.filter(([, , needed]) => n >= needed) : n ? MEAN : [];
    const shares = columns.map(([, share]) => share);
    if (!shares.length) continue;
    const sources = pair.map(({ values }, at) =>
      name.endsWith("per_s") ? { n: values.length, block: blockLength(values) } : [a, b][at]
    );
    const samples = /** @type {Float64Array[][]} */ ([]);
    for (const [seed, series] of pair.entries()) {
      samples.push(await resampled(series, shares, sources[seed], seed, stop));
    }
    const ordered = pair.map(({ values }) => values.toSorted());
    columns.forEach(([statistic, share], at) => {
      const seen = pair.map(({ values }, i) => share === null ? meanOf(values) : quantileOf(ordered[i], share));
      rows.push(rowOf(name, statistic, seen, samples.map((each) => each[at])));
    });
  }
  return rows;
}

/** Lower latencies are better, and higher rates and shares. @param {string} measure @param {string} statistic @param {number[]} seen @param {Float64Array[]} samples @returns {Row} */
function rowOf(measure, statistic, [a, b], [first, second]) {
  const ratio = a === Infinity && b === Infinity ? 1 : a ? b / a : null;
  const interval = ratio === null ? null : ratioInterval(first, second, CONFIDENCE);
  const row = { measure, statistic, a, b, ratio, interval };
  if (!interval) return { ...row, verdict: "unknown" };
  if (interval.low <= 1 && interval.high >= 1) return { ...row, verdict: "noise" };
  return { ...row, verdict: (interval.high < 1) === isTime(measure) ? "better" : "worse" };
}

/** Whether a measure is a time in seconds. @param {string} measure */
export const isTime = (measure) => measure.endsWith("_s") && !measure.endsWith("per_s");
