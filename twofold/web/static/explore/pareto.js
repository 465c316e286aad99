// @ts-check
/** Pareto: the pace of an answer against its cost, for machines and batches. */

import { h } from "../core/dom.js";
import { money, number, seconds } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { asking } from "./ask.js";
import { choiceField, given, listOf, numberField, numberOf, textField } from "./fields.js";
import { scenarioFields, scenarioOf } from "./levers.js";

/** @typedef {import("./fields.js").Form} Form */

const MACHINES = "h100:1,h200:1,l40s:1";
const PACES = /** @type {const} */ ([["tpot", "seconds for each token"], ["speed", "tokens per second of a user"]]);

/** @param {Form} form @param {string} model */
export function paretoFields(form, model) {
  return [
    textField(form, "machines", "Machines (name:devices=$/h)", { hint: MACHINES }),
    ...scenarioFields(form, model),
    numberField(form, "limit", "At most, ms for each token", { high: 500, start: null }),
    choiceField(form, "pace", "Pace as", PACES),
  ];
}

/** @param {HTMLElement} root @param {import("../views.js").App} app @param {Form} form */
export function paretoPart(root, app, form) {
  const ask = (/** @type {AbortSignal} */ signal) => {
    const state = form.state();
    const machines = listOf(state.machines || MACHINES).map(machineOf);
    return app.api.post("/v1/twofold/curve", { ...scenarioOf(state, app.model.peek()), machines }, { signal });
  };
  return asking(root, ask, (found) => shown(found, form.state()), app.announce);
}

/** `h100:4=2.50` as a machine of the body. @param {string} text */
export function machineOf(text) {
  const [named, price] = text.split("="), [hardware, tp] = named.split(":");
  return given({ hardware: hardware.trim(), tp: numberOf(tp), price_per_hour: numberOf(price) });
}

/** @param {any} found @param {import("./fields.js").State} state */
function shown(found, state) {
  const priced = found.curves.filter((/** @type {any} */ each) => each.price_per_hour !== null);
  const missing = found.curves.filter((/** @type {any} */ each) => each.price_per_hour === null || !each.points.length);
  const front = frontier(priced);
  return [
    h("h2", {}, `${found.model}: pace against cost`),
    chartView(paretoChart(priced, front, state), { height: 400 }),
    missing.map((/** @type {any} */ each) =>
      h(
        "p",
        { class: "faint" },
        each.points.length
          ? `${each.hardware} has no price in the table: add one, such as ${each.hardware}:${each.tp}=2.50.`
          : `${each.tp} × ${each.hardware}: the model does not fit.`,
      )
    ),
  ];
}

/** @param {any[]} curves @param {any[]} front @param {import("./fields.js").State} state */
function paretoChart(curves, front, state) {
  const speed = state.pace === "speed", limit = numberOf(state.limit);
  const pace = (/** @type {number} */ tpot) => speed ? 1 / tpot : tpot;
  const marks = curves.flatMap((curve, series) => {
    const name = `${curve.tp} × ${curve.hardware}`, error = curve.error.tpot;
    const points = curve.points.map((/** @type {any} */ p) => [p.dollars_per_million, pace(p.tpot_s)]);
    const titles = curve.points.map((/** @type {any} */ p) =>
      `${name}, batch ${p.batch}: ${money(p.dollars_per_million)} per million tokens, ${seconds(p.tpot_s)} each`
    );
    const band = curve.points.map((
      /** @type {any} */ p,
    ) => [p.dollars_per_million, pace(p.tpot_s * (1 - error)), pace(p.tpot_s * (1 + error))]);
    return [
      ...(error ? [{ mark: "Band", points: band, label: name, series }] : []),
      { mark: "Line", points, label: name, series },
      { mark: "Dots", points, titles, label: name, series },
      ...curve.points.filter((/** @type {any} */ _, /** @type {number} */ i) => i % 3 === 0).map((
        /** @type {any} */ p,
      ) => ({ mark: "Label", x: p.dollars_per_million, y: pace(p.tpot_s), text: `${p.batch}` })),
    ];
  });
  const best = {
    mark: "StepLine",
    points: front.map((p) => [p.dollars_per_million, pace(p.tpot_s)]),
    label: "nothing is cheaper and faster",
    series: 6,
    dashed: true,
  };
  const costs = curves.flatMap((curve) => curve.points.map((/** @type {any} */ p) => p.dollars_per_million));
  const met = limit
    ? [{
      mark: "Guide",
      axis: /** @type {const} */ ("y"),
      value: pace(limit / 1000),
      text: `objective: ${number(limit)} ms`,
    }, {
      mark: "Band",
      points: [Math.min(...costs), Math.max(...costs)].map((x) =>
        speed
          ? [x, pace(limit / 1000), Math.max(...front.map((p) => pace(p.tpot_s)))]
          : [x, Math.min(...front.map((p) => p.tpot_s)), limit / 1000]
      ),
      label: "meets the objective",
      series: 2,
    }]
    : [];
  return {
    title: "Pace against cost, by batch",
    note: "bands: the mean error of the predictions; machines that are always busy",
    x: { label: "dollars per million answer tokens", kind: /** @type {const} */ ("log"), form: "money" },
    y: {
      label: speed ? "tokens per second of a user" : "seconds for each token",
      kind: /** @type {const} */ ("log"),
      form: speed ? "number" : "seconds",
    },
    marks: [...met, ...marks, best],
  };
}

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
