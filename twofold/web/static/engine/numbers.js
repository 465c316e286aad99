// @ts-check
/** What the engine view says in words and numbers: the chosen step, the last five minutes, the roofline. */

import { h } from "../core/dom.js";
import { count, seconds, share, tokens } from "../core/form.js";
import { table, wideTable } from "../draw/table.js";
import { HELD, lanesIn, roofPoint } from "../live/state.js";

/** @typedef {import("../live/state.js").Live} Live */
/** @typedef {import("../live/state.js").Step} Step */

const MEASURES = /** @type {const} */ ([
  ["ttft", "TTFT"],
  ["tpot", "TPOT"],
  ["itl", "ITL"],
  ["e2e", "Total time"],
  ["queue", "Queue"],
]);

/** @param {number | null | undefined} value milliseconds */
const ms = (value) => seconds(value == null ? null : value / 1e3);

/** A step in one sentence. @param {Live} live @param {Step} step */
export function stepText(live, step) {
  const point = roofPoint(live, step), many = step.times > 1 ? ` (${step.times} steps)` : "";
  const rows = [tokens(step.prefill, "prompt row"), tokens(step.decode, "decode row")].join(" and ");
  const drafts = step.drafts ? `, ${count(step.drafts)} of them drafts` : "";
  const parts = [
    `Step ${count(step.n)}${many}: ${rows}${drafts}`,
    `${ms(step.ms)}, predicted ${ms(step.foreseen)}`,
  ];
  if (point) parts.push(`this machine needs at least ${ms(point.leastMs)}`);
  return `${parts.join("; ")}. Prompts: ${HELD[step.why] ?? step.why}.`;
}

/** @param {Live} live @param {Step | null} step */
export function lanesTable(live, step) {
  const shown = step ? lanesIn(live, step) : [...live.lanes.values()].filter((lane) => lane.ended === null);
  const head = ["Sequence", "Slot", "Tier", "Prompt", "Cached", "Tokens", "Drafts", "State"];
  const rows = shown.slice(-200).map((lane) => {
    const last = lane.runs.at(-1), running = last && last.to === null;
    const state = lane.ended !== null
      ? `ended: ${lane.reason}`
      : lane.waits || (lane.first === null ? "prefill" : "decode");
    return [
      lane.id || `number ${lane.number}`,
      running ? String(last.slot) : "–",
      lane.tier,
      count(lane.prompt),
      lane.prompt === null ? "–" : count(lane.cached) + (lane.loaded ? ` (${count(lane.loaded)} from disk)` : ""),
      lane.prompt === null ? "–" : count(lane.tokens),
      lane.drafted ? `${count(lane.accepted)} of ${count(lane.drafted)} accepted` : "–",
      state,
    ];
  });
  return table(step ? `Sequences in step ${step.n}` : "Sequences now", head, rows);
}

/** @param {Live} live @param {Step[]} steps */
export function stepsTable(live, steps) {
  const head = ["Step", "Prompt rows", "Decode rows", "Drafts", "Took", "Predicted", "Least", "Budget", "Prompts"];
  return table(
    "The last steps",
    head,
    steps.slice(-60).reverse().map((step) => [
      count(step.n),
      count(step.prefill),
      count(step.decode),
      count(step.drafts),
      ms(step.ms),
      ms(step.foreseen),
      ms(roofPoint(live, step)?.leastMs),
      count(step.budget),
      HELD[step.why] ?? step.why,
    ]),
  );
}

/** P50 and P99 by tier or tenant, goodput, stalls and counts. @param {Live} live @param {"tiers" | "tenants"} by */
export function lately(live, by) {
  const told = live.lately;
  if (!told) return [h("p.faint", "No figures yet.")];
  const groups = /** @type {[string, any][]} */ ([["all", told.all], ...Object.entries(told[by])]);
  const cells = (/** @type {any} */ of, /** @type {number} */ at) =>
    MEASURES.map(([measure]) => seconds(of[measure]?.[at]));
  const rows = groups.filter(([, of]) => of.e2e).flatMap(([name, of]) => [
    [`${name || "no tenant"}, P50`, ...cells(of, 0), count(of.e2e[2])],
    ["P99", ...cells(of, 1), by === "tiers" && told.met[name] ? `${goodput(told.met[name])} met objectives` : ""],
  ]);
  const stalls = /** @type {[string, number][]} */ (Object.entries(told.stalls)).sort((a, b) => b[1] - a[1]);
  const facts = stalls.map(([cause, lost]) => [`stalls: ${cause}`, seconds(lost)]);
  for (const [phase, reached] of Object.entries(told.share)) {
    facts.push([`share of the limit, ${phase}`, share(reached)]);
  }
  if (told.counts) facts.push(...countsOf(told.counts));
  facts.push(["error of predicted steps", share(told.error)]);
  return [
    rows.length
      ? wideTable("Latencies", ["Group", ...MEASURES.map(([, name]) => name), "Requests"], rows)
      : h("p.faint", "No request ended in the last 5 minutes."),
    wideTable("Stalls and counts", ["Engine", "Value"], facts),
  ];
}

/** @param {number[]} met */
const goodput = ([good, bad]) => share(good / (good + bad));

/** @param {any} counts */
const countsOf = ({ queries, hits, preemptions, swaps, evicted, drafted, accepted, loaded }) => [
  ["prompt tokens from the cache", share(queries ? hits / queries : null)],
  ["preempted (swapped)", `${count(preemptions)} (${count(swaps)})`],
  ["evicted blocks", count(evicted)],
  ["draft tokens accepted", drafted ? `${share(accepted / drafted)} of ${count(drafted)}` : "–"],
  ["tokens from the KV store", count(loaded)],
];

/** @param {Live} live @param {Step[]} steps @param {Step | null} chosen @returns {import("../draw/chart.js").Chart | null} */
export function roofline(live, steps, chosen) {
  const { machine, work } = live.hello ?? {};
  if (!machine) return null;
  const points = steps.map((step) => ({ step, at: roofPoint(live, step) })).filter((each) => each.at);
  const dots = (/** @type {(step: Step) => boolean} */ fits) =>
    points.filter(({ step }) => fits(step)).map(({ at }) => [at?.x, at?.y]);
  const foreseen = points.filter(({ at }) => at?.foreseen).map(({ at }) => [at?.x, at?.foreseen]);
  const ridge = machine.flops_per_s / machine.bytes_per_s, own = chosen && roofPoint(live, chosen);
  const marks = [
    {
      mark: "Line",
      points: [[0.5, machine.bytes_per_s / 2], [ridge, machine.flops_per_s], [
        Math.max(1e3, 4 * ridge),
        machine.flops_per_s,
      ]],
      label: "limit of this machine",
      series: 6,
    },
    { mark: "Dots", points: foreseen, label: "predicted", series: 5, radius: 1.5 },
    { mark: "Dots", points: dots((step) => !step.prefill), label: "decode alone", series: 0, radius: 2 },
    { mark: "Dots", points: dots((step) => step.prefill > 0), label: "with prompts", series: 1, radius: 2 },
    ...(own ? [{ mark: "Dots", points: [[own.x, own.y]], label: "chosen step", series: 3, radius: 5 }] : []),
  ];
  const note = work?.windows ? "Layers with windows do less than shown." : "";
  const range = { kind: /** @type {const} */ ("log"), form: "number" };
  return {
    title: "Roofline",
    note,
    x: { ...range, label: "operations for each byte read" },
    y: { ...range, label: "operations per second" },
    marks: marks.filter((mark) => mark.points.length),
  };
}

/** What a canvas shows, for those who cannot see it. @param {Live} live */
export function summary(live) {
  const last = live.steps.at(-1), [waiting, running] = live.queue;
  const now = `${count(running)} sequences run, ${count(waiting)} wait.`;
  return last ? `${now} ${stepText(live, last)}` : `${now} No step lately.`;
}
