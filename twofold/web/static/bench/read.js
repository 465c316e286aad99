// @ts-check
/** Results of `twofold bench`: their figures and charts. Nothing here leaves the browser. */

/**
 * @typedef {import("../draw/chart.js").Chart} Chart
 * @typedef {{name: string, document: any}} Result
 */

import { documentIn } from "../core/parts.js";

const SCHEMA = "twofold.bench/1";
const MAX_POINTS = 400, MAX_DOTS = 1500, MAX_ROWS = 150, BINS = 80;

/** Names of measures with their places in a summary. */
export const MEASURES = /** @type {const} */ ([
  ["TTFT", "latency", "ttft_s"],
  ["TTFT from send", "latency", "ttft_sent_s"],
  ["TPOT", "latency", "tpot_s"],
  ["ITL", "itl", "gap_s"],
  ["E2E", "latency", "e2e_s"],
  ["schedule delay", "latency", "schedule_delay_s"],
]);
export const COLUMNS = /** @type {const} */ ([
  ["mean", "mean"],
  ["P50", "p50"],
  ["P90", "p90"],
  ["P99", "p99"],
  ["max", "max"],
]);
export const RATES = /** @type {const} */ ([
  ["requests/s", "requests_per_s"],
  ["output tokens/s", "output_tokens_per_s"],
  ["total tokens/s", "total_tokens_per_s"],
]);

/**
 * The result in the text of a file. Throws an Error that says what to give instead.
 * @param {string} text
 * @param {string} name
 * @returns {Result}
 */
export function readResult(text, name) {
  const fault = `${name} is not a file of twofold bench --output`;
  return { name, document: documentIn(text, SCHEMA, "runs", fault) };
}

/** A figure of a run, or null. @param {any} run @param {...string} path @returns {number | null} */
export function figure(run, ...path) {
  const found = path.reduce((part, name) => part?.[name], run.summary);
  return typeof found === "number" ? found : null;
}

/** A figure of a distribution: infinite where too many requests failed. @param {any} run @param {string} group @param {string} name @param {string} column */
export function timeOf(run, group, name, column) {
  const found = figure(run, group, name, column);
  return found === null && column !== "mean" && figure(run, group, name, "n") ? Infinity : found;
}

/** The load of a run: rate 4 and concurrency 8; empty for one without either. @param {any} run */
export function pointOf({ load }) {
  const found = { ...load.arrivals, ...load };
  const names = ["rate", "concurrency"].filter((name) => typeof found[name] === "number");
  return names.map((name) => `${name} ${Number(found[name].toPrecision(6))}`).join(" and ");
}

/** A name for each run of a result. @param {Result} result @returns {string[]} */
export const namesOf = ({ name, document: { runs } }) =>
  runs.map((/** @type {any} */ run) => runs.length > 1 ? [name, pointOf(run)].filter(Boolean).join(", ") : name);

/** Settings by dotted names. @param {any} value @param {string} [before] @returns {[string, string][]} */
function flat(value, before = "") {
  if (value === null || value === undefined) return [];
  if (typeof value !== "object") return [[before, String(value)]];
  return Object.entries(value).flatMap(([name, each]) => flat(each, before ? `${before}.${name}` : name));
}

/** Settings in which results differ: name and the value of each. @param {Result[]} results @returns {string[][]} */
export function differences(results) {
  const all = results.map(({ document: { settings, target, machine, runs } }) => {
    const found = new Map(flat({ settings, target, machine }));
    const loads = Map.groupBy(/** @type {any[]} */ (runs).flatMap(({ load }) => flat({ load })), ([name]) => name);
    for (const [name, values] of loads) found.set(name, [...new Set(values.map(([, value]) => value))].join(", "));
    return found;
  });
  const names = [...new Set(all.flatMap((each) => [...each.keys()]))];
  const rows = names.map((name) => [name, ...all.map((each) => each.get(name) ?? "–")]);
  return rows.filter(([, first, ...others]) => others.some((value) => value !== first));
}

/** @param {any} run @returns {Chart[]} */
export function chartsOf(run) {
  const measured = /** @type {any[]} */ (run.requests).filter((each) => each.measured);
  const gaps = measured.flatMap((each) => each.gaps_us ?? []).map((gap) => gap / 1e6);
  /** @param {string} name */
  const values = (name) => measured.map((each) => each[name]);
  return [
    overTime(measured),
    output(run.requests),
    timeline(measured),
    distribution("Time to first token", values("ttft_s"), 1),
    distribution("Time per output token", values("tpot_s"), 0),
    distribution("Inter-token latency", gaps, 3),
  ].filter((chart) => chart !== null);
}

const TIME = { label: "time since start", form: "seconds", low: 0, tight: true };

/** The share of values up to each; missing ones are infinite. @param {string} title @param {any[]} values @param {number} series @returns {Chart | null} */
function distribution(title, values, series) {
  const known = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
  if (!known.length) return null;
  const stride = Math.max(1, Math.floor(known.length / MAX_POINTS));
  const points = known.map((value, i) => [value, (i + 1) / values.length])
    .filter((_, i) => i % stride === 0 || i === known.length - 1);
  return {
    title,
    x: {
      label: "time",
      form: "seconds",
      kind: known[0] > 0 && known[known.length - 1] > 20 * known[0] ? "log" : "linear",
    },
    y: { label: "share", form: "share", low: 0, high: 1 },
    marks: [{ mark: "StepLine", points, series }],
  };
}

/** @param {any[]} requests @returns {Chart | null} */
function overTime(requests) {
  const stride = Math.ceil(requests.length / MAX_DOTS);
  const shown = requests.filter((each, i) => i % stride === 0 && each.ttft_s !== null);
  if (!shown.length) return null;
  const titles = shown.map((each) => `request ${each.index}`);
  const points = shown.map((each) => [each.due_s, each.ttft_s]);
  const marks = [{ mark: "Dots", points, titles, series: 1, radius: 2.2 }];
  return { title: "TTFT over the run", x: TIME, y: { label: "TTFT", form: "seconds", low: 0 }, marks };
}

/** Tokens by the time of their arrival. @param {any[]} requests @returns {Chart | null} */
function output(requests) {
  /** @type {[number, number][]} */
  const arrivals = [];
  for (const { first_s: first, gaps_us: gaps, chunk_tokens: tokens } of requests) {
    if (first === null) continue;
    let at = first;
    [0, ...(gaps ?? [])].forEach((gap, i) => {
      at += gap / 1e6;
      arrivals.push([at, Array.isArray(tokens) ? tokens[i] : tokens ?? 1]);
    });
  }
  if (!arrivals.length) return null;
  const width = Math.max(1e-3, arrivals.reduce((most, [at]) => Math.max(most, at), 0)) / BINS;
  const sums = new Float64Array(BINS);
  for (const [at, tokens] of arrivals) sums[Math.min(BINS - 1, Math.floor(at / width))] += tokens / width;
  const points = [...sums, sums[BINS - 1]].map((sum, i) => [i * width, sum]);
  return {
    title: "Output",
    x: TIME,
    y: { label: "tokens/s", low: 0 },
    marks: [{ mark: "StepLine", points, series: 2 }],
  };
}

/** A row for each of the first requests: waiting, then the first token, then the others. @param {any[]} requests @returns {Chart | null} */
function timeline(requests) {
  const shown = requests.slice(0, MAX_ROWS).filter((each) => each.ended_s !== null);
  if (!shown.length) return null;
  /** @param {string} label @param {number} series @param {string} from @param {string} to */
  const part = (label, series, from, to) => ({
    mark: "Spans",
    label,
    series,
    spans: shown.flatMap((each, row) => {
      const end = each[to] ?? each.ended_s, start = each[from];
      return start === null || end <= start ? [] : [{ row, start, end, title: `request ${each.index}: ${label}` }];
    }),
  });
  const marks = [
    part("waits in the client", 5, "due_s", "started_s"),
    part("TTFT", 1, "started_s", "first_s"),
    part("further tokens", 0, "first_s", "last_s"),
  ];
  return { title: "Requests", x: TIME, y: { label: "request", low: 0, high: shown.length, downwards: true }, marks };
}

/** Pace and output of each run of a result, for curves of several. @param {Result} result @param {number} series @returns {import("../draw/chart.js").Mark[]} */
export function curve({ name, document }, series) {
  const points = /** @type {any[]} */ (document.runs).map((run) => [
    figure(run, "rates", "achieved", "output_tokens_per_s") ?? NaN,
    figure(run, "latency", "tpot_s", "p50") ?? NaN,
  ]);
  const titles = document.runs.map(pointOf);
  return [{ mark: "Line", points, label: name, series }, { mark: "Dots", points, titles, label: name, series }];
}
