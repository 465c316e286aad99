// @ts-check
/**
 * Charts as SVG, from the same data as those of the reports and of terminals (`bench/draw/chart.py`).
 *
 * A chart can be zoomed along x: drag over it, or focus it and use + − ← → and 0 for the whole. Charts that share a
 * zoom signal are zoomed together.
 */

import { h } from "../core/dom.js";
import { count, money, number, seconds, share } from "../core/form.js";
import { effect, signal } from "../core/signal.js";
import { fit, place, placeable, ticksOf, valueAt } from "./scale.js";
import { asTable } from "./table.js";

/**
 * @typedef {import("./scale.js").Scale} Scale
 * @typedef {{label?: string, kind?: "linear" | "log", form?: string, low?: number | null, high?: number | null, ticks?: number, tight?: boolean, downwards?: boolean}} Axis
 * @typedef {{mark: string, points?: any[], spans?: any[], label?: string, series?: number, dashed?: boolean, titles?: string[], radius?: number, axis?: "x" | "y", value?: number, text?: string, x?: number, y?: number}} Mark
 *   Line, StepLine, Dots: points [x, y]; Band: [x, low, high]; Bars: [from, to, y]; Spans: {row, start, end, title}
 * @typedef {{title: string, note?: string, x: Axis, y: Axis, marks: Mark[]}} Chart
 * @typedef {[number, number] | null} Zoom
 * @typedef {{x: Scale, y: Scale, left: number, right: number, top: number, bottom: number, atX: (v: number) => number, atY: (v: number) => number}} Frame
 */

export const COLOURS = ["decode", "prefill", "cached", "stall", "pin", "queue", "you"];
/** @type {Record<string, (value: number) => string>} */
const FORMS = { number, seconds, duration: seconds, share, money, count, whole: count };
const [LEFT, RIGHT, TOP, BOTTOM] = [66, 14, 10, 40];

/** @param {Axis} axis */
const formOf = (axis) => FORMS[axis.form ?? "number"] ?? number;
/** @param {number} [series] */
const colourOf = (series = 0) => `var(--${COLOURS[series % COLOURS.length]})`;

/**
 * A figure with the chart, its legend and its table.
 * @param {Chart} chart
 * @param {{height?: number, zoom?: import("../core/signal.js").Signal<Zoom>, pick?: (mark: Mark, index: number) => void}} [options]
 */
export function chartView(chart, { height = 260, zoom = signal(/** @type {Zoom} */ (null)), pick } = {}) {
  const width = signal(0);
  const svg = /** @type {SVGSVGElement} */ (/** @type {any} */ (h("svg", {
    class: "chart",
    role: "img",
    tabindex: 0,
    "aria-label": `${chart.title}. ${chart.note ?? ""} Zoom with + and −, move with the arrows, 0 shows all.`,
  })));
  const figure = h(
    "figure",
    { class: "figure" },
    h("figcaption", {}, h("b", {}, chart.title), chart.note ? h("span", { class: "faint" }, chart.note) : null),
    legend(chart),
    svg,
    asTable(chart.title, () => rowsOf(chart)),
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
    svg.replaceChildren(...draw(chart, frame, pick));
  });
  zooming(svg, zoom, () => frame);
  effect(() => () => watch.disconnect());
  return figure;
}

/** @param {Chart} chart @param {number} width @param {number} height @param {Zoom} zoom @returns {Frame} */
function frameOf(chart, width, height, zoom) {
  const found = chart.marks.map(valuesOf);
  const axis = (/** @type {Axis} */ { kind = "linear", low, high, tight, ticks }, /** @type {any[]} */ values) =>
    fit(kind, values, { low, high, tight, ticks });
  let x = axis(chart.x, found.flatMap(([xs]) => xs));
  if (zoom) x = { ...x, low: zoom[0], high: zoom[1] };
  const y = axis(chart.y, found.flatMap(([, ys]) => ys));
  const [left, right, top, bottom] = [LEFT, width - RIGHT, TOP, height - BOTTOM];
  const turned = chart.y.downwards;
  return {
    x,
    y,
    left,
    right,
    top,
    bottom,
    atX: (value) => left + place(x, value) * (right - left),
    atY: (value) => turned ? top + place(y, value) * (bottom - top) : bottom - place(y, value) * (bottom - top),
  };
}

/** The values of a mark along x and y. @param {Mark} mark @returns {[number[], number[]]} */
function valuesOf(mark) {
  const points = mark.points ?? [];
  if (mark.mark === "Spans") {
    const spans = mark.spans ?? [];
    return [spans.flatMap((each) => [each.start, each.end]), spans.flatMap((each) => [each.row, each.row + 1])];
  }
  if (mark.mark === "Guide") return mark.axis === "x" ? [[Number(mark.value)], []] : [[], [Number(mark.value)]];
  if (mark.mark === "Label") return [[Number(mark.x)], [Number(mark.y)]];
  if (mark.mark === "Band") return [points.map((p) => p[0]), points.flatMap((p) => [p[1], p[2]])];
  if (mark.mark === "Bars") return [points.flatMap((p) => [p[0], p[1]]), points.map((p) => p[2])];
  return [points.map((p) => p[0]), points.map((p) => p[1])];
}

/** @param {Chart} chart @param {Frame} frame @param {any} pick */
function draw(chart, frame, pick) {
  const clip = `clip${++clips}`, { left, right, top, bottom } = frame;
  const texts = /** @type {DOMRect[]} */ ([]);
  const marks = chart.marks.flatMap((mark) => drawMark(mark, frame, texts, pick));
  return [
    h(
      "defs",
      {},
      h("clipPath", { id: clip }, h("rect", { x: left, y: top, width: right - left, height: bottom - top })),
    ),
    ...axes(chart, frame),
    h("g", { "clip-path": `url(#${clip})` }, marks),
  ];
}
let clips = 0;

/** @param {Chart} chart @param {Frame} frame */
function axes(chart, frame) {
  const { left, right, top, bottom } = frame;
  const rule = { stroke: "var(--rule)" }, text = { class: "tick" };
  return [
    ...ticksOf(frame.x, Math.max(2, (right - left) / 90)).flatMap((value) => [
      h("path", { d: `M${frame.atX(value)} ${top}V${bottom}`, ...rule }),
      h("text", { ...text, x: frame.atX(value), y: bottom + 14, "text-anchor": "middle" }, formOf(chart.x)(value)),
    ]),
    ...ticksOf(frame.y, 6).flatMap((value) => [
      h("path", { d: `M${left} ${frame.atY(value)}H${right}`, ...rule }),
      h("text", { ...text, x: left - 5, y: frame.atY(value) + 4, "text-anchor": "end" }, formOf(chart.y)(value)),
    ]),
    h("text", { ...text, x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle" }, chart.x.label ?? ""),
    h("text", {
      ...text,
      x: 11,
      y: (top + bottom) / 2,
      "text-anchor": "middle",
      transform: `rotate(-90 11 ${(top + bottom) / 2})`,
    }, chart.y.label ?? ""),
  ];
}

/** @param {Mark} mark @param {Frame} frame @param {DOMRect[]} texts @param {any} pick @returns {SVGElement[]} */
function drawMark(mark, frame, texts, pick) {
  const colour = colourOf(mark.series), { atX, atY, bottom } = frame, points = mark.points ?? [];
  switch (mark.mark) {
    case "Line":
    case "StepLine":
      return [
        h("path", {
          d: pathOf(points, frame, mark.mark === "StepLine"),
          fill: "none",
          stroke: colour,
          "stroke-width": 1.6,
          "stroke-dasharray": mark.dashed ? "5 4" : null,
        }),
      ];
    case "Band": {
      const known = points.filter((p) =>
        p.every((/** @type {any} */ v, /** @type {number} */ i) => placeable(i ? frame.y.kind : frame.x.kind, v))
      );
      const edge = [...known.map((p) => [p[0], p[2]]), ...known.reverse().map((p) => [p[0], p[1]])];
      return [h("path", { d: pathOf(edge, frame, false) + "Z", fill: colour, "fill-opacity": 0.16 })];
    }
    case "Bars":
      return points.map(([from, to, y]) =>
        h("rect", {
          x: atX(from),
          width: Math.max(1, atX(to) - atX(from) - 1),
          y: atY(y),
          height: Math.max(0, bottom - atY(y)),
          fill: colour,
        })
      );
    case "Dots":
      return dots(mark, frame, colour, pick);
    case "Spans":
      return (mark.spans ?? []).map((span) =>
        h("rect", {
          x: atX(span.start),
          width: Math.max(0.7, atX(span.end) - atX(span.start)),
          y: Math.min(atY(span.row), atY(span.row + 1)) + 0.5,
          height: Math.max(0.5, Math.abs(atY(span.row + 1) - atY(span.row)) - 1),
          fill: colour,
        }, span.title ? h("title", {}, span.title) : null)
      );
    case "Guide":
      return guide(mark, frame);
    default:
      return label(mark, frame, texts);
  }
}

/** @param {Mark} mark @param {Frame} frame @param {string} colour @param {any} pick */
function dots(mark, frame, colour, pick) {
  return (mark.points ?? []).flatMap(([x, y], index) => {
    if (!placeable(frame.x.kind, x) || !placeable(frame.y.kind, y)) return [];
    const title = mark.titles?.[index];
    return [h("circle", {
      cx: frame.atX(x),
      cy: frame.atY(y),
      r: mark.radius ?? 3.5,
      fill: colour,
      class: pick ? "pick" : null,
      onclick: pick ? () => pick(mark, index) : null,
    }, title ? h("title", {}, title) : null)];
  });
}

/** @param {Mark} mark @param {Frame} frame */
function guide(mark, { atX, atY, left, right, top, bottom }) {
  const value = Number(mark.value), line = { stroke: "var(--faint)", "stroke-dasharray": "3 3" };
  return mark.axis === "x"
    ? [
      h("path", { d: `M${atX(value)} ${top}V${bottom}`, ...line }),
      h("text", { class: "tick", x: atX(value) + 4, y: bottom - 5 }, mark.text ?? ""),
    ]
    : [
      h("path", { d: `M${left} ${atY(value)}H${right}`, ...line }),
      h("text", { class: "tick", x: right - 4, y: atY(value) - 4, "text-anchor": "end" }, mark.text ?? ""),
    ];
}

/** A text beside a point, unless it would cover another one. @param {Mark} mark @param {Frame} frame @param {DOMRect[]} texts */
function label(mark, frame, texts) {
  const x = frame.atX(Number(mark.x)) + 6, y = frame.atY(Number(mark.y)) - 5;
  const wide = 6.2 * (mark.text ?? "").length, right = x + wide > frame.right;
  const box = new DOMRect(right ? x - wide - 12 : x, y - 10, wide, 13);
  if (
    texts.some((other) =>
      box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom
    )
  ) return [];
  texts.push(box);
  return [
    h(
      "text",
      { class: "tick name", x: right ? x - 12 : x, y, "text-anchor": right ? "end" : "start" },
      mark.text ?? "",
    ),
  ];
}

/** A path with gaps where a point has no position. @param {any[]} points @param {Frame} frame @param {boolean} steps */
function pathOf(points, frame, steps) {
  let path = "", broken = true;
  for (const [x, y] of points) {
    if (!placeable(frame.x.kind, x) || !placeable(frame.y.kind, y)) broken = true;
    else {
      const [left, top] = [frame.atX(x).toFixed(1), frame.atY(y).toFixed(1)];
      path += broken ? `M${left} ${top}` : steps ? `H${left}V${top}` : `L${left} ${top}`;
      broken = false;
    }
  }
  return path;
}

/** @param {Chart} chart */
function legend(chart) {
  const named = new Map(chart.marks.filter((mark) => mark.label).map((mark) => [mark.label, mark]));
  if (!named.size) return null;
  return h(
    "p",
    { class: "key" },
    [...named].map(([name, mark]) =>
      h(
        "span",
        {},
        h(
          "svg",
          { width: 12, height: 8, "aria-hidden": "true" },
          h("rect", { width: 12, height: 8, rx: 2, fill: colourOf(mark.series) }),
        ),
        name,
      )
    ),
  );
}

/** @param {Chart} chart @returns {[string[], string[][]]} */
function rowsOf(chart) {
  const x = formOf(chart.x), y = formOf(chart.y);
  const rows = chart.marks.flatMap((mark) => {
    const name = mark.label || mark.mark;
    if (mark.mark === "Guide") {
      return [[
        mark.text ?? name,
        mark.axis === "x" ? x(Number(mark.value)) : "",
        mark.axis === "y" ? y(Number(mark.value)) : "",
      ]];
    }
    if (mark.mark === "Label") return [];
    if (mark.spans) {
      return mark.spans.map((span) => [span.title || name, `${x(span.start)} – ${x(span.end)}`, y(span.row)]);
    }
    return (mark.points ?? []).map((p, i) => {
      const titled = mark.titles?.[i] ?? name;
      return p.length === 2
        ? [titled, x(p[0]), y(p[1])]
        : mark.mark === "Band"
        ? [titled, x(p[0]), `${y(p[1])} – ${y(p[2])}`]
        : [titled, `${x(p[0])} – ${x(p[1])}`, y(p[2])];
    });
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
