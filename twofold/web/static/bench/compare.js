// @ts-check
/** Several results side by side: the settings that differ first, then their figures. */

import { fill, h } from "../core/dom.js";
import { number, seconds, share } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { compared, isTime } from "./intervals.js";
import { COLUMNS, curve, differences, figure, MEASURES, namesOf, RATES, timeOf } from "./read.js";

/**
 * @param {import("./read.js").Result[]} given
 * @param {(text: string) => void} announce
 * @param {AbortSignal} stop  ends what is computed
 */
export function comparisonOf(given, announce, stop) {
  const same = new Set(given.map(({ name }) => name)).size < given.length;
  const results = same ? given.map((each, at) => ({ ...each, name: `${at + 1}: ${each.name}` })) : given;
  const names = results.map((result) => result.name), differ = differences(results);
  return [
    h("h2", "Settings that differ"),
    differ.length ? wideTable("Settings that differ", ["setting", ...names], differ) : h("p", "None."),
    results.length === 2
      ? verdicts(results, announce, stop)
      : allFigures(results, "Confidence intervals need exactly two results."),
    chartView({
      title: "TPOT and throughput",
      x: { label: "output tokens/s", kind: "log" },
      y: { label: "TPOT P50", kind: "log", form: "seconds" },
      marks: results.flatMap(curve),
    }),
  ];
}

/** The figures of all runs. @param {import("./read.js").Result[]} results @param {string} why  they have no intervals */
function allFigures(results, why) {
  const runs = results.flatMap(({ document }) => document.runs);
  const rows = MEASURES.flatMap(([words, group, name]) =>
    COLUMNS.filter(([, column]) => column !== "max").map(([title, column]) => [
      `${words} ${title}`,
      ...runs.map((run) => seconds(timeOf(run, group, name, column))),
    ])
  ).filter(([, ...cells]) => cells.some((cell) => cell !== "–"));
  const rates = RATES.map(([title, name]) => [
    title,
    ...runs.map((run) => number(figure(run, "rates", "achieved", name))),
  ]);
  return [
    h("h2", "Figures"),
    h("p.faint", why),
    wideTable("Figures", ["figure", ...results.flatMap(namesOf)], [...rows, ...rates]),
  ];
}

/**
 * The figures of two results with intervals, which take a moment.
 * @param {import("./read.js").Result[]} results @param {(text: string) => void} announce @param {AbortSignal} stop
 */
function verdicts(results, announce, stop) {
  const shown = h("div", h("p.faint", "Computing confidence intervals…"));
  const [a, b] = results, head = ["figure", a.name, b.name, "change", "99% interval", `verdict on ${b.name}`];
  compared(a.document, b.document, stop).then(
    ({ pairs, alone }) => {
      fill(
        shown,
        pairs.map(({ point, rows }) => [
          h("h2", point ? `Figures at ${point}` : "Figures"),
          wideTable(point ? `Comparison at ${point}` : "Comparison", head, rows.map(cellsOf)),
        ]),
        alone.length ? h("p.faint", `Only in one result: ${alone.join(", ")}.`) : null,
      );
      announce("The confidence intervals are computed.");
    },
    (error) => stop.aborted || fill(shown, allFigures(results, error.message)),
  );
  return shown;
}

/** @param {import("./intervals.js").Row} row */
function cellsOf({ measure, statistic, a, b, ratio, interval, verdict }) {
  const form = isTime(measure) ? seconds : measure.endsWith("per_s") ? number : share;
  const band = interval ? `${change(interval.low)} … ${change(interval.high)}` : "";
  const name = NAMES[measure] ?? measure;
  return [
    statistic === "mean" ? name : `${name} ${statistic.toUpperCase()}`,
    form(a),
    form(b),
    ratio === null ? "" : change(ratio),
    band,
    verdict,
  ];
}

const NAMES = /** @type {Record<string, string>} */ ({
  ttft_s: "TTFT",
  ttft_sent_s: "TTFT from send",
  tpot_s: "TPOT",
  e2e_s: "E2E",
  itl_s: "ITL",
  requests_per_s: "requests/s",
  output_tokens_per_s: "output tokens/s",
  answered_share: "completed",
  attainment: "met objectives",
});

/** @param {number} ratio */
function change(ratio) {
  const percent = Number((100 * (ratio - 1)).toFixed(6));
  return ratio === Infinity ? "∞" : `${percent < 0 ? "" : "+"}${Number(percent.toPrecision(3))}%`;
}
