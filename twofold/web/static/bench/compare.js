// @ts-check
/** Several results side by side: the settings that differ first, then their figures. */

import { h } from "../core/dom.js";
import { number, seconds } from "../core/form.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { COLUMNS, curve, differences, figure, MEASURES, RATES, timeOf } from "./read.js";

/**
 * @param {import("./read.js").Result[]} results
 * @param {any} [comparison]  of `twofold bench compare`, which has intervals
 */
export function comparisonOf(results, comparison) {
  const names = results.map((result) => result.name), differ = differences(results);
  const runs = results.map(({ document }) => document.runs[0]);
  const rows = MEASURES.flatMap(([words, group, name]) =>
    COLUMNS.filter((column) => column !== "max").map((column) => [
      `${words} ${column.toUpperCase()}`,
      ...runs.map((run) => seconds(timeOf(run, group, name, column))),
    ])
  ).filter(([, ...cells]) => cells.some((cell) => cell !== "–"));
  const rates = RATES.map((name) => [
    name.replaceAll("_", " "),
    ...runs.map((run) => number(figure(run, "rates", "achieved", name))),
  ]);
  return [
    h("h2", {}, "Settings that differ"),
    differ.length ? wideTable("Settings that differ", ["setting", ...names], differ) : h("p", {}, "None."),
    h("h2", {}, "Figures"),
    comparison ? verdicts(comparison) : [
      h("p", { class: "faint" }, "twofold bench view a.json b.json tells differences from noise."),
      wideTable("Figures", ["figure", ...names], [...rows, ...rates]),
    ],
    chartView({
      title: "Pace by output",
      x: { label: "output tokens/s", kind: "log" },
      y: { label: "TPOT P50", kind: "log", form: "seconds" },
      marks: results.flatMap(curve),
    }),
  ];
}

/** @param {any} comparison */
function verdicts({ pairs }) {
  /** @param {number | null} ratio */
  const change = (ratio) => ratio === null ? "" : `${ratio >= 1 ? "+" : ""}${((ratio - 1) * 100).toPrecision(3)}%`;
  return /** @type {any[]} */ (pairs).map((pair, i) => {
    const rows = /** @type {any[]} */ (pair.rows).map(({ measure, statistic, a, b, ratio, interval, verdict }) => {
      const form = measure.endsWith("_s") && !measure.includes("per_s") ? seconds : number;
      const band = interval ? `${change(interval.low)} … ${change(interval.high) || "∞"}` : "";
      return [nameOf(measure, statistic), form(a), form(b), change(ratio), band, verdict];
    });
    return wideTable(`Comparison ${i + 1}`, ["figure", "a", "b", "change", "99% interval", "verdict on b"], rows);
  });
}

/** As twofold bench compare names it: TTFT P99. @param {string} measure @param {string} statistic */
function nameOf(measure, statistic) {
  const name = measure.endsWith("per_s") ? measure.replace("_per_s", "/s") : measure.replace(/_s$/, "");
  const words = /^(ttft|tpot|itl|e2e)/.test(name) ? name.toUpperCase().replace("_SENT", " from send") : name;
  return `${words.replaceAll("_", " ")}${statistic === "mean" ? "" : ` ${statistic.toUpperCase()}`}`;
}
