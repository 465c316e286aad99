// @ts-check
/** Explain: where a request's time goes, the least it could take, and levers that turn and stack. */

import { given } from "../core/api.js";
import { h } from "../core/dom.js";
import { bytes, count, number, seconds, share } from "../core/form.js";
import { button } from "../core/parts.js";
import { chartView } from "../draw/chart.js";
import { wideTable } from "../draw/table.js";
import { choiceField, listOf, numberField, numberOf, textField } from "./fields.js";

/** @typedef {import("./fields.js").Form} Form */

export const MACHINES =
  "this a100-40 a100-80 h100 h100-pcie h200 b200 l40s l4 a10g rtx-4090 rtx-3090 mi300x tpu-v4 epyc-9654 epyc-9754 xeon-8480 graviton-4 m2-ultra m4-max"
    .split(" ");
export const MODELS =
  "llama-2-7b llama-3-8b llama-3-70b llama-3.2-1b smollm2-135m mistral-7b mixtral-8x7b qwen2.5-7b qwen2.5-72b qwen3-1.7b qwen3-4b qwen3-8b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b gemma-3-4b gemma-3-12b gemma-3-27b deepseek-v3 kimi-k2 gpt-oss-20b gpt-oss-120b"
    .split(" ");
/** Machines to plan with or to rent: not this one. */
export const RENTED = MACHINES.slice(1);
const GOALS = /** @type {const} */ ([["e2e", "total time"], ["ttft", "TTFT"], ["tpot", "TPOT"], [
  "gap",
  "longest gap",
], ["throughput", "tokens per second"]]);
const TEXTS = /** @type {const} */ ([["prose", "prose"], ["code", "code"], ["quote", "text that quotes the prompt"]]);
const FORMATS = ["bf16", "fp8", "int8", "int4"];
const PHASES =
  /** @type {Record<string, string>} */ ({ queue: "queue", prefill: "prefill", decode: "decode", stalls: "stall" });
const STATES = /** @type {Record<string, string>} */ ({
  felt: "Perceived only",
  "no gain": "No gain",
  "in use": "In use",
  cannot: "Not applicable",
});

/** A field that a request of the server sets. */
const AS_IT_WAS = { start: null, hint: "as it was" };

/** The fields of a scenario, which other parts share. @param {Form} form @param {string} model */
export function scenarioFields(form, model) {
  const asItWas = form.state().request ? AS_IT_WAS : {};
  return [
    textField(form, "model", "Model", { hint: model, known: [...new Set([model, ...MODELS].filter(Boolean))] }),
    textField(form, "weights", "Weights", { hint: "as published", known: FORMATS }),
    textField(form, "kv", "Keys and values", { hint: "bf16", known: [...FORMATS, "q8", "k8v4"] }),
    numberField(form, "input", "Prompt tokens", { high: 200_000, start: 512, ...asItWas }),
    numberField(form, "cached", "Cached prompt tokens", { low: 0, high: 100_000, start: 0, ...asItWas }),
    numberField(form, "output", "Output tokens", { high: 16_000, start: 128, ...asItWas }),
  ];
}

/** @param {import("./fields.js").State} state @param {string} model */
export function scenarioOf(state, model) {
  return given({
    model: state.model || model || undefined,
    weights: state.weights,
    kv: state.kv,
    input_tokens: numberOf(state.input),
    cached: numberOf(state.cached),
    output_tokens: numberOf(state.output),
  });
}

/** @param {Form} form @param {string} model */
export function explainFields(form, model) {
  const { request } = form.state();
  return [
    request
      ? h(
        "p.row",
        button(["✕ Request ", h("b", request)], () => form.change({ request: null })),
      )
      : null,
    textField(form, "hardware", "Machine", { hint: "this", known: MACHINES }),
    numberField(form, "tp", "Devices", { high: 64, start: 1 }),
    ...scenarioFields(form, model),
    numberField(form, "batch", "Concurrency", { high: 1024, start: 1, ...(request ? AS_IT_WAS : {}) }),
    numberField(form, "chunk", "Max. tokens per step", { low: 16, high: 32_768, start: null }),
    choiceField(form, "goal", "Sort levers by", GOALS),
    choiceField(form, "text", "Kind of text", TEXTS),
  ];
}

/** @param {import("./fields.js").State} state @param {string} model */
export function explainBody(state, model) {
  const levers = listOf(state.levers), { request, hardware, goal, text } = state;
  return given({
    ...scenarioOf(state, request ? "" : model),
    ...{ request, hardware, goal, text },
    tp: numberOf(state.tp),
    batch: numberOf(state.batch),
    chunk: numberOf(state.chunk),
    levers: levers.length ? levers : undefined,
  });
}

/** @param {any} found @param {Form} form */
export function explanation(found, form) {
  return [
    h("h2", found.title),
    figures(found),
    waterfall(found),
    found.levers.length || found.turned.length ? levers(found, form) : null,
    found.chart ? chartView(found.chart, { height: 320 }) : null,
    h("ul.notes.faint", found.notes.map((/** @type {string} */ note) => h("li", note))),
  ];
}

/** @type {[string, string, (value: number) => string][]} */
const FIGURES = [
  ["Time to first token", "ttft", seconds],
  ["Time per output token", "tpot", seconds],
  ["Total time", "e2e", seconds],
  ["Tokens/s per device", "throughput", number],
  ["Memory per device", "memory", bytes],
  ["Sequences that fit", "sequences", count],
];

/** @param {any} found */
function figures({ figures: now, before }) {
  return now && h(
    "dl.facts",
    FIGURES.filter(([, name]) => now[name] !== null).map(([words, name, form]) => {
      const was = before && before[name] !== now[name] ? h("small", `${form(before[name])} without levers`) : null;
      return h("div", h("dt", words), h("dd", form(now[name]), was));
    }),
  );
}

/** Took, predicted and least time of each phase, on one axis. @param {any} found */
function waterfall(found) {
  const phases = /** @type {any[]} */ (found.phases).filter((p) => p.seconds || p.predicted_s);
  const measured = phases.some((p) => p.actual_s !== null);
  const wide = 640, whole = Math.max(found.seconds, found.predicted_s ?? 0) || 1;
  let at = 0, guessed = 0;
  const bars = phases.flatMap((phase, i) => {
    const fill = `var(--${PHASES[phase.name]})`;
    /** @param {number} start @param {number | null} length @param {number} y @param {number} height @param {any} [more] */
    const bar = (start, length, y, height, more) => {
      const place = {
        x: wide * start / whole,
        width: Math.max(1, wide * (length ?? 0) / whole),
        y: 34 * i + y,
        height,
      };
      return length ? h("rect", { ...place, rx: 1, fill, ...more }) : null;
    };
    const drawn = [
      bar(at, phase.seconds, 4, 14),
      measured ? bar(guessed, phase.predicted_s, 19, 4, { fill: "none", stroke: fill }) : null,
      bar(at, phase.floor_s, 25, 4, { "fill-opacity": 0.45 }),
    ];
    at += phase.seconds;
    guessed += phase.predicted_s ?? 0;
    return drawn;
  });
  /** @param {any} name @param {any} p @param {string} cause */
  const row = (name, p, cause) => {
    const times = [p.seconds, ...(measured ? [p.predicted_s] : []), p.floor_s].map(seconds);
    return [name, ...times, share(p.floor_s ? p.floor_s / p.seconds : null), cause];
  };
  const head = ["phase", ...(measured ? ["took"] : []), "predicted", "floor", "of limit", "limited by"];
  const label = `${seconds(found.seconds)} in all, at least ${seconds(found.floor_s)}`;
  return h(
    "section",
    h("h3", "Where the time goes"),
    h("svg.fall", {
      viewBox: `0 0 ${wide} ${phases.length * 34}`,
      role: "img",
      preserveAspectRatio: "none",
      "aria-label": label,
    }, bars),
    wideTable(
      "Phases",
      head,
      [...phases.map((p) => row(p.name, p, causeOf(p))), row(h("b", "total"), found, "")],
      REASONS,
    ),
  );
}

/** @param {any} phase */
function causeOf({ parts_s: parts, bound, why }) {
  const found = /** @type {[string, number][]} */ (Object.entries(parts ?? {})).sort((a, b) => b[1] - a[1]);
  const all = found.reduce((sum, part) => sum + part[1], 0);
  const shares = found.filter((part) => part[1] > 0.03 * all).map(([name, s]) => `${name} ${share(s / all)}`);
  return [shares.join(", ") || bound, why].filter(Boolean).join("; ");
}

/** @param {number} value */
const factor = (value) => `×${value.toFixed(2)}`;
/** A table whose last column is text. */
const REASONS = "stats reasons";

/** @param {any} found @param {Form} form */
function levers(found, form) {
  const all = /** @type {any[]} */ (found.levers), names = listOf(form.state().levers);
  /** @param {string[]} next */
  const set = (next) => form.change({ levers: next.join(",") || null });
  /** @param {any} each */
  const named = ({ lever, after }) => after ? button(lever, () => set([...names, lever]), { class: "link" }) : lever;
  const turned = /** @type {any[]} */ (found.turned).map(({ lever, what, why }) => {
    const back = () => set(names.filter((name) => name.toLowerCase() !== lever.toLowerCase()));
    const words = [h("b", lever), ` ${what || `not applied: ${why}`} ✕`];
    return button(words, back, { "aria-label": `Take back ${lever}` });
  });
  const rows = all.filter((each) => each.status === "gains").map((each) => [
    named(each),
    ...[found.goal, "ttft", "tpot", "throughput"].map((goal) => factor(each.gains[goal])),
    `${each.what}. ${each.why} Costs: ${each.costs}.`,
  ]);
  const others = all.filter((each) => each.status !== "gains")
    .map((each) => [named(each), STATES[each.status], each.why]);
  const goal = GOALS.find(([name]) => name === found.goal)?.[1] ?? "";
  return h(
    "section",
    h("h3", "Levers"),
    h("p.chips", turned.length ? turned : "Click a lever to apply it. The others are ranked again."),
    wideTable("Levers that gain", ["lever", goal, "TTFT", "TPOT", "tokens/s", "why"], rows, REASONS),
    h(
      "details",
      h("summary", `${others.length} others`),
      wideTable("Others", ["lever", "here", "why"], others, REASONS),
    ),
  );
}
