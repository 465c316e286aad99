// @ts-check
/** Bench: results of `twofold bench` from files, which are read here and never uploaded. */

import { fill, h } from "../core/dom.js";
import { count, number, seconds } from "../core/form.js";
import { button, filePicker } from "../core/parts.js";
import { onEnd, signal } from "../core/signal.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { comparisonOf } from "./compare.js";
import { chartsOf, COLUMNS, figure, MEASURES, namesOf, pointOf, RATES, readResult, timeOf } from "./read.js";

/** @typedef {import("./read.js").Result} Result */

/** @type {import("../views.js").ViewModule["mount"]} */
export const mount = (root, app) => root.append(benchView([], app.announce));

/**
 * @param {Result[]} given
 * @param {(text: string) => void} announce
 */
export function benchView(given, announce) {
  /** @type {Result[]} */
  let results = given, stop = new AbortController();
  const shown = h("div.result"), faults = h("div");
  onEnd(() => stop.abort());
  /** @param {File[]} files */
  const add = async (files) => {
    fill(faults);
    for (const file of files) {
      try {
        const text = await file.text();
        results = [...results, readResult(text, file.name)];
      } catch (error) {
        fill(faults, h("p.fault", { role: "alert" }, /** @type {Error} */ (error).message));
      }
    }
    show();
    announce(results.length === 1 ? "1 result is shown." : `${results.length} results are shown.`);
  };
  const picker = filePicker(
    { accept: ".json,application/json", multiple: true, "aria-label": "Result files" },
    add,
  );
  const show = () => {
    stop.abort();
    stop = new AbortController();
    fill(
      shown,
      results.length > 1 ? comparisonOf(results, announce, stop.signal) : null,
      results.map((result) => {
        const remove = () => (results = results.filter((each) => each !== result), show());
        return resultOf(result, button("Remove", remove));
      }),
      results.length ? null : h("p.faint", "Drop files of twofold bench --output here."),
    );
  };
  show();
  return h(
    "main.bench.scroll",
    {
      ondragover: (/** @type {DragEvent} */ event) => event.preventDefault(),
      ondrop: (/** @type {DragEvent} */ event) => {
        event.preventDefault();
        add([...event.dataTransfer?.files ?? []]);
      },
    },
    h("h1.hidden", "Bench"),
    h(
      "p.parts.row",
      button("Choose result files", () => picker.click()),
      picker,
      h("span.faint", "They stay in this browser."),
    ),
    faults,
    shown,
  );
}

/** @param {Result} result @param {HTMLElement} remove */
function resultOf(result, remove) {
  const { name, document } = result,
    names = namesOf(result),
    { target, runs, command } = document,
    zoom = signal(/** @type {import("../draw/chart.js").Zoom} */ (null));
  return h(
    "section",
    { "aria-label": name },
    h("h2", `${name}: ${target.model} `, remove),
    h("p.faint", `twofold bench ${command}, ${target.url}`),
    /** @type {any[]} */ (runs).map((run, i) => {
      const body = [
        figuresOf(run, names[i]),
        chartsOf(run).map((chart) => {
          const timed = chart.x.label === "time since start", high = chart.title === "Requests" ? 420 : 220;
          return chartView(chart, timed ? { zoom, height: high } : { height: high });
        }),
      ];
      return runs.length > 1 ? h("details", { open: i === 0 }, h("summary", pointOf(run) || "one run"), body) : body;
    }),
  );
}

/** @param {any} run @param {string} name */
function figuresOf(run, name) {
  const rows = MEASURES.map(([words, group, name]) => [
    words,
    ...COLUMNS.map(([, column]) => seconds(timeOf(run, group, name, column))),
  ]).filter(([, ...cells]) => cells.some((cell) => cell !== "–"));
  const rates = RATES.map(([title, name]) => `${number(figure(run, "rates", "achieved", name))} ${title}`);
  const ok = /** @type {any[]} */ (run.requests).filter((each) => each.outcome === "ok").length;
  return [
    h(
      "p",
      `${count(ok)} of ${count(run.requests.length)} requests completed in ${seconds(run.duration_s)}: ${
        rates.join(", ")
      }.`,
    ),
    wideTable(`Latency of ${name}`, ["measure", ...COLUMNS.map(([title]) => title)], rows),
  ];
}
