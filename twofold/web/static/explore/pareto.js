// @ts-check
/** Pareto: the pace of an answer against its cost, for machines and batches. */

import { given } from "../core/api.js";
import { h } from "../core/dom.js";
import { money, seconds } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { choiceField, listOf, numberField, numberOf, textField } from "./fields.js";
import { RENTED, scenarioFields, scenarioOf } from "./levers.js";

/** @typedef {import("./fields.js").Form} Form */

const CURVES = "h100:1,h200:1,l40s:1";
const PACES = /** @type {const} */ ([["tpot", "seconds per output token"], ["speed", "tokens per second and user"]]);

/** @param {Form} form @param {string} model */
export function paretoFields(form, model) {
  return [
    textField(form, "machines", "Machines (name:devices=$/h, with commas)", {
      hint: CURVES,
      known: RENTED.map((name) => `${name}:1`),
      several: true,
    }),
    ...scenarioFields(form, model),
    numberField(form, "limit", "TPOT objective (ms)", { high: 500, start: null }),
    choiceField(form, "pace", "Show pace as", PACES),
  ];
}

/** @param {import("./fields.js").State} state @param {string} model */
export const curveBody = (state, model) => ({
  ...scenarioOf(state, model),
  machines: listOf(state.machines || CURVES).map(machineOf),
});

/** `h100:4=2.50` as a machine of the body. @param {string} text */
export function machineOf(text) {
  const [named, price] = text.split("="), [hardware, tp] = named.split(":");
  return given({ hardware: hardware.trim(), tp: numberOf(tp), price_per_hour: numberOf(price) });
}

/** @param {any} found @param {Form} form */
export function paretoOf({ model, curves }, form) {
  const all = /** @type {any[]} */ (curves);
  if (all.some(({ points }) => points[0]?.tpot_s === null)) return [h("p", "One token has no pace.")];
  const priced = all.filter((each) => each.price_per_hour !== null);
  const missing = all.filter((each) => each.price_per_hour === null || !each.points.length);
  return [
    h("h2", `${model}: pace against cost`),
    chartView(paretoChart(priced, form.state()), { height: 400 }),
    missing.map(({ hardware, tp, points }) => {
      const why = points.length ? `no price is known: write ${hardware}:${tp}=2.50` : "the model does not fit";
      return h("p.faint", `${tp} × ${hardware}: ${why}.`);
    }),
  ];
}

/** @param {any[]} curves @param {import("./fields.js").State} state @returns {import("../draw/chart.js").Chart} */
function paretoChart(curves, state) {
  const fast = state.pace === "speed", limit = (numberOf(state.limit) ?? 0) / 1000, front = frontier(curves);
  /** @param {number} tpot */
  const pace = (tpot) => fast ? 1 / tpot : tpot;
  /** @param {any} p */
  const at = (p) => [p.dollars_per_million, pace(p.tpot_s)];
  /** @type {import("../draw/chart.js").Mark[]} */
  const marks = curves.flatMap((curve, series) => {
    const label = `${curve.tp} × ${curve.hardware}`, error = curve.error.tpot ?? 0;
    const list = /** @type {any[]} */ (curve.points), points = list.map(at);
    const titles = list.map((p) => `${label}, batch ${p.batch}: ${money(p.dollars_per_million)}, ${seconds(p.tpot_s)}`);
    const band = list.map((p) => [p.dollars_per_million, ...[1 - error, 1 + error].map((by) => pace(p.tpot_s * by))]);
    const names = points.map(([x, y], i) => ({ mark: "Label", x, y, text: String(list[i].batch) }));
    return [
      ...(error ? [{ mark: "Band", points: band, label, series }] : []),
      { mark: "Line", points, label, series },
      { mark: "Dots", points, titles, label, series },
      ...names.filter((_, i) => i % 3 === 0),
    ];
  });
  if (limit && front.length) {
    const edge = pace(limit), best = pace(front[front.length - 1].tpot_s);
    const costs = curves.flatMap((curve) => curve.points.map(at)).map(([cost]) => cost);
    const corner = [Math.min(...costs), Math.max(...costs)].map((cost) => [cost, edge, best]);
    marks.unshift({ mark: "Band", points: corner, label: "meets the objective", series: 2 });
    marks.push({ mark: "Guide", axis: "y", value: edge, text: "objective" });
  }
  const label = "Pareto front: nothing is cheaper and faster", [measured, guessed] = measuredOf(curves);
  const of = guessed.length ? `; not measured for ${guessed.join(", ")}` : "";
  const bands = measured.length
    ? `Bands: mean error of predictions${of}.`
    : "The error of these predictions was not measured.";
  return {
    title: "Pace and cost by batch size",
    note: `Numbers: batch size. ${bands} Machines at full load.`,
    x: { label: "dollars per million output tokens", kind: "log", form: "money" },
    y: { label: PACES[Number(fast)][1], kind: "log", form: fast ? "number" : "seconds" },
    marks: [...marks, { mark: "StepLine", points: front.map(at), label, series: 6, dashed: true }],
  };
}

/** Machines whose predictions were compared with measurements, and others. @param {any[]} curves @returns {string[][]} */
const measuredOf = (curves) =>
  [true, false].map((known) =>
    curves.filter((curve) => Boolean(curve.error.tpot) === known).map(({ hardware }) => hardware)
  );

/** Points such that no other is both faster and cheaper, by cost. @param {any[]} curves */
export function frontier(curves) {
  /** @type {any[]} */
  const kept = [];
  const all = curves.flatMap((curve) => curve.points);
  for (const point of all.sort((a, b) => a.dollars_per_million - b.dollars_per_million || a.tpot_s - b.tpot_s)) {
    if (!kept.length || point.tpot_s < kept[kept.length - 1].tpot_s) kept.push(point);
  }
  return kept;
}
