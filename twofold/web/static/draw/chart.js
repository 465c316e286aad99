// @ts-check
/**
 * Charts as SVG, from the same data as those of the reports and of terminals (`bench/draw/chart.py`).
 *
 * A chart can be zoomed along x: drag over it, or focus it and use + − ← → and 0 for the whole. Charts that share a
 * zoom signal are zoomed together.
 */

import { fill, h } from "../core/dom.js";
import { count, money, number, seconds, share } from "../core/form.js";
import { effect, onEnd, signal } from "../core/signal.js";
import { fit, place, placeable, ticksOf, valueAt } from "./scale.js";
import { asTable, table } from "./table.js";

/**
 * @typedef {import("./scale.js").Scale} Scale
 * @typedef {{label?: string, kind?: "linear" | "log", form?: string, low?: number | null, high?: number | null, ticks?: number, tight?: boolean, downwards?: boolean}} Axis
 * @typedef {{mark: string, points?: any[], spans?: any[], label?: string, series?: number, dashed?: boolean, titles?: string[], radius?: number, axis?: "x" | "y", value?: number, text?: string, x?: number, y?: number}} Mark
 *   Line, StepLine, Dots: points [x, y]; Band: [x, low, high]; Spans: {row, start, end, title}
 * @typedef {{title: string, note?: string, x: Axis, y: Axis, marks: Mark[]}} Chart
 * @typedef {[number, number] | null} Zoom
 * @typedef {{x: Scale, y: Scale, left: number, right: number, top: number, bottom: number, atX: (v: number) => number, atY: (v: number) => number}} Frame
 */

export const COLOURS = ["decode", "prefill", "cached", "stall", "pin", "queue", "you"];
/** @type {Record<string, (value: number) => string>} */
const FORMS = { number, seconds, duration: seconds, share, money, dollars: money, count, whole: count };

/** @param {Axis} axis */
const formOf = (axis) => FORMS[axis.form ?? "number"] ?? number;
/** @param {number} [series] */
const colourOf = (series = 0) => `var(--${COLOURS[series % COLOURS.length]})`;

/**
 * A figure with the chart, its legend and its table.
 * @param {Chart} chart
 * @param {{height?: number, zoom?: import("../core/signal.js").Signal<Zoom>}} [options]
 */
export function chartView(chart, { height = 260, zoom = signal(/** @type {Zoom} */ (null)) } = {}) {
  const width = signal(0);
  const svg = /** @type {SVGSVGElement} */ (/** @type {any} */ (h("svg.chart", {
    role: "img",
    tabindex: 0,
    "aria-label": `${chart.title}. ${chart.note ?? ""} Zoom with + and −, move with the arrows, 0 shows all.`,
  })));
  const figure = h(
    "figure.figure",
    h("figcaption", h("b", chart.title), chart.note ? h("span.faint", chart.note) : null),
    legend(chart),
    svg,
    asTable(chart.title, () => table(chart.title, ...rowsOf(chart))),
  );
  const watch = new ResizeObserver(([entry]) => width.set(Math.round(entry.contentRect.width)));
  watch.observe(figure);
  /** @type {Frame | null} */
  let frame = null;
  effect(() => {
    if (!width.get()) return;
    svg.setAttribute("viewBox", `0 0 ${width.get()} ${height}`);
    svg.setAttribute("height", String(height));
    frame = frameOf(chart, width.get(), height, zoom.get());
    fill(svg, draw(chart, frame));
  });
  zooming(svg, zoom, () => frame);
  onEnd(() => watch.disconnect());
  return figure;
}

/** @param {Chart} chart @param {number} width @param {number} height @param {Zoom} zoom @returns {Frame} */
function frameOf(chart, width, height, zoom) {
  /** @type {{x: number[], y: number[]}} */
  const found = { x: [], y: [] };
  for (const mark of chart.marks) {
    for (const [x1, x2, y1, y2] of boxesOf(mark)) (found.x.push(x1, x2), found.y.push(y1, y2));
    if (mark.mark === "Guide") found[mark.axis ?? "x"].push(mark.value ?? 0);
  }
  let x = fit(chart.x.kind ?? "linear", found.x, chart.x);
  if (zoom) x = { ...x, low: zoom[0], high: zoom[1] };
  const y = fit(chart.y.kind ?? "linear", found.y, chart.y), down = chart.y.downwards;
  const [left, right, top, bottom] = [66, width - 22, 10, height - 40];
  return {
    ...{ x, y, left, right, top, bottom },
    atX: (value) => left + place(x, value) * (right - left),
    atY: (value) => down ? top + place(y, value) * (bottom - top) : bottom - place(y, value) * (bottom - top),
  };
}

/** What a mark covers: [x, x, y, y] of each part. @param {Mark} mark @returns {any[]} */
function boxesOf({ mark, points = [], spans = [], x, y }) {
  if (mark === "Spans") return spans.map((span) => [span.start, span.end, span.row, span.row + 1]);
  if (mark === "Label") return [[x, x, y, y]];
  return points.map(([at, low, high = low]) => [at, at, low, high]);
}

/** @param {number} x @param {number} y @param {string} words @param {string} [anchor] @param {any} [more] */
const say = (x, y, words, anchor = "middle", more = { class: "tick" }) =>
  h("text", { x, y, "text-anchor": anchor, ...more }, words);
/** @param {string} d @param {any} props */
const path = (d, props) => h("path", { d, fill: "none", ...props });

/** @param {Chart} chart @param {Frame} frame */
function draw(chart, frame) {
  const { left, right, top, bottom, atX, atY } = frame, clip = `clip${++clips}`, rule = { stroke: "var(--rule)" };
  const [formX, formY] = [chart.x, chart.y].map(formOf), middle = (top + bottom) / 2;
  /** @type {DOMRect[]} */
  const texts = [];
  const area = h("rect", { x: left - 4, y: top - 4, width: right - left + 8, height: bottom - top + 8 }); // whole dots
  return [
    h("defs", h("clipPath", { id: clip }, area)),
    ticksOf(frame.x, Math.max(2, (right - left) / 90)).map((value) => [
      path(`M${atX(value)} ${top}V${bottom}`, rule),
      say(atX(value), bottom + 14, formX(value)),
    ]),
    ticksOf(frame.y, 6).map((value) => [
      path(`M${left} ${atY(value)}H${right}`, rule),
      say(left - 5, atY(value) + 4, formY(value), "end"),
    ]),
    say((left + right) / 2, bottom + 32, chart.x.label ?? ""),
    say(11, middle, chart.y.label ?? "", "middle", { class: "tick", transform: `rotate(-90 11 ${middle})` }),
    h("g", { "clip-path": `url(#${clip})` }, chart.marks.map((mark) => drawMark(mark, frame, texts))),
  ];
}
let clips = 0;

/** @param {Mark} mark @param {Frame} frame @param {DOMRect[]} texts @returns {any[]} */
function drawMark(mark, frame, texts) {
  const { atX, atY, x, y } = frame, { points = [] } = mark, colour = colourOf(mark.series);
  const seen = points.filter(([at, ...values]) =>
    placeable(x.kind, at) && values.every((/** @type {any} */ v) => placeable(y.kind, v))
  );
  switch (mark.mark) {
    case "Band": {
      const edge = [...seen.map((p) => [p[0], p[2]]), ...seen.toReversed().map((p) => [p[0], p[1]])];
      return [path(`${pathOf(edge, frame, false)}Z`, { fill: colour, "fill-opacity": 0.16 })];
    }
    case "Spans":
      return boxesOf(mark).map(([from, to, low, high], i) => {
        const [start, end] = [atX(from), atX(to)], [one, other] = [atY(low), atY(high)].sort((a, b) => a - b);
        const size = { width: Math.max(0.7, end - start), height: Math.max(0.5, other - one - 1) };
        return h(
          "rect",
          { x: start, y: one + 0.5, ...size, fill: colour },
          h("title", mark.spans?.[i].title ?? ""),
        );
      });
    case "Dots": {
      const r = mark.radius ?? 3.5, titles = mark.titles;
      if (titles) {
        return seen.map((p) =>
          h("circle", { cx: atX(p[0]), cy: atY(p[1]), r, fill: colour }, h("title", titles[points.indexOf(p)]))
        );
      }
      const d = seen.map((p) => `M${atX(p[0]).toFixed(1)} ${atY(p[1]).toFixed(1)}h0`).join("");
      return [path(d, { stroke: colour, "stroke-width": 2 * r, "stroke-linecap": "round" })];
    }
    case "Guide":
      return guide(mark, frame, texts);
    case "Label":
      return label(mark, frame, texts);
    default: {
      const dashes = mark.dashed ? "5 4" : null;
      const line = { stroke: colour, "stroke-width": 1.6, "stroke-dasharray": dashes };
      return [path(pathOf(points, frame, mark.mark === "StepLine"), line)];
    }
  }
}

/** Whether a text at a place covers no other one; it is noted then. @param {DOMRect[]} texts @param {number} x @param {number} y @param {number} width */
function isFree(texts, x, y, width) {
  const box = new DOMRect(x, y - 10, width, 13);
  if (texts.some((o) => box.left < o.right && o.left < box.right && box.top < o.bottom && o.top < box.bottom)) {
    return false;
  }
  texts.push(box);
  return true;
}

/** @param {string} text */
const widthOf = (text) => 6.2 * text.length + 3;

/** A line with its name, which is above those that it would cover. @param {Mark} mark @param {Frame} frame @param {DOMRect[]} texts */
function guide({ value = 0, text = "", axis }, { atX, atY, left, right, top, bottom }, texts) {
  const line = { stroke: "var(--faint)", "stroke-dasharray": "3 3" };
  let low = bottom - 5;
  while (axis === "x" && low > top && !isFree(texts, atX(value) + 4, low, widthOf(text))) low -= 13;
  return axis === "x"
    ? [path(`M${atX(value)} ${top}V${bottom}`, line), say(atX(value) + 4, low, text, "start")]
    : [path(`M${left} ${atY(value)}H${right}`, line), say(right - 4, Math.max(top + 12, atY(value) - 4), text, "end")];
}

/** A text beside a point, unless it would cover another one. @param {Mark} mark @param {Frame} frame @param {DOMRect[]} texts */
function label({ text = "", ...mark }, frame, texts) {
  const width = widthOf(text), x = frame.atX(mark.x ?? 0) + 6, y = frame.atY(mark.y ?? 0) - 5;
  const turned = x + width > frame.right;
  if (!isFree(texts, turned ? x - width - 12 : x, y, width)) return [];
  return [say(turned ? x - 12 : x, y, text, turned ? "end" : "start", { class: "tick name" })];
}

/** A path with gaps where a point has no position. @param {any[]} points @param {Frame} frame @param {boolean} steps */
function pathOf(points, { atX, atY, x: { kind }, y }, steps) {
  let drawn = "", broken = true;
  for (const [x, value] of points) {
    const known = placeable(kind, x) && placeable(y.kind, value);
    if (known) {
      const [left, top] = [atX(x).toFixed(1), atY(value).toFixed(1)];
      drawn += broken ? `M${left} ${top}` : steps ? `H${left}V${top}` : `L${left} ${top}`;
    }
    broken = !known;
  }
  return drawn;
}

/** @param {Chart} chart */
function legend({ marks }) {
  const named = new Map(marks.filter((mark) => mark.label).map((mark) => [mark.label, colourOf(mark.series)]));
  const size = { width: 12, height: 8 };
  return h(
    "p.key",
    [...named].map(([name, fill]) =>
      h("span", h("svg", { ...size, "aria-hidden": "true" }, h("rect", { ...size, rx: 2, fill })), name)
    ),
  );
}

/** @param {Chart} chart @returns {[string[], string[][]]} */
function rowsOf(chart) {
  const [formX, formY] = [chart.x, chart.y].map(formOf);
  /** @param {(v: number) => string} form @param {number} low @param {number} high */
  const both = (form, low, high) => low === high ? form(low) : `${form(low)} – ${form(high)}`;
  const rows = chart.marks.filter((mark) => mark.mark !== "Label").flatMap((mark) => {
    const { axis, value = 0, text, titles, spans } = mark, name = mark.label || text || mark.mark;
    if (axis) return [[name, axis === "x" ? formX(value) : "", axis === "y" ? formY(value) : ""]];
    return boxesOf(mark).map(([x1, x2, y1, y2], i) => [
      (titles?.[i] ?? spans?.[i].title) || name,
      both(formX, x1, x2),
      spans ? formY(y1) : both(formY, y1, y2),
    ]);
  });
  return [["mark", chart.x.label || "x", chart.y.label || "y"], rows];
}

/**
 * Zoom along x by mouse and keyboard.
 * @param {SVGSVGElement} svg
 * @param {import("../core/signal.js").Signal<Zoom>} zoom
 * @param {() => Frame | null} frameNow
 */
function zooming(svg, zoom, frameNow) {
  let from = NaN;
  const at = (/** @type {MouseEvent} */ event) => {
    const frame = /** @type {Frame} */ (frameNow());
    return (event.clientX - svg.getBoundingClientRect().left - frame.left) / (frame.right - frame.left);
  };
  const set = (/** @type {number} */ low, /** @type {number} */ high) => {
    const { x } = /** @type {Frame} */ (frameNow());
    zoom.set([valueAt(x, low), valueAt(x, high)]);
  };
  svg.addEventListener("pointerdown", (event) => from = at(event));
  svg.addEventListener("pointerup", (event) => {
    const [low, high] = [from, at(event)].sort((a, b) => a - b);
    from = NaN;
    if (high - low > 0.02) set(Math.max(0, low), Math.min(1, high));
  });
  svg.addEventListener("dblclick", () => zoom.set(null));
  /** @type {Record<string, [number, number]>} */
  const keys = {
    "+": [0.2, 0.8],
    "=": [0.2, 0.8],
    "-": [-1 / 3, 4 / 3],
    ArrowLeft: [-0.2, 0.8],
    ArrowRight: [0.2, 1.2],
  };
  svg.addEventListener("keydown", (event) => {
    if (event.key === "0") zoom.set(null);
    else if (keys[event.key]) set(...keys[event.key]);
    else return;
    event.preventDefault();
  });
}
