// @ts-check
/** Engine: what a model's engine does, live, paused, step by step, or from a recording. */

import { paced } from "../core/clock.js";
import { fill, h, retext } from "../core/dom.js";
import { bytes, count } from "../core/form.js";
import { choice, faultLine } from "../core/parts.js";
import { effect, onEnd, scope } from "../core/signal.js";
import { drawBlocks, drawTree, partsOf } from "../draw/blocks.js";
import { palette, sheet } from "../draw/canvas.js";
import { chartView } from "../draw/chart.js";
import { drawFold } from "../draw/fold.js";
import { drawLanes, slotsUsed } from "../draw/lanes.js";
import { asTable } from "../draw/table.js";
import { firstAfter, stepOf, tokensIn } from "../live/state.js";
import { choose, createModel, watch } from "./model.js";
import { lanesTable, lately, roofline, stepsTable, stepText, summary } from "./numbers.js";
import { canvas, panel, tools } from "./parts.js";
import { createReplicas } from "./replicas.js";
import { createRest } from "./rest.js";

/** @typedef {import("./model.js").Model} Model */

const DIVISIONS = /** @type {["tiers" | "tenants", string][]} */ ([["tiers", "By tier"], ["tenants", "By tenant"]]);
const POINTS = 400;
const BEAT_MS = 100, WORDS_MS = 450;
const UNMEASURED = "The roofline needs the limits of this machine: run twofold doctor.";

/** @param {Model} model */
function createParts(model) {
  const { live, chosen, second } = model;
  const steps = panel("Steps", { prefill: "prompt rows", decode: "decode rows", budget: "prompt budget" });
  const lanes = panel("Sequences", {
    ...{ prefill: "prefill", cached: "from the cache", decode: "decode", stall: "paused", queue: "waiting" },
  });
  const blocks = panel("KV blocks", {
    ...{ pin: "pinned", shared: "shared", decode: "held", cached: "cached", free: "free" },
  });
  const fold = canvas("fold", "Rows of the steps", model), rows = canvas("lanes", "Sequences by slot", model);
  const map = canvas("map", "KV blocks"), tree = canvas("tree", "Prefix tree"), said = h("p.said");
  const roof = h("section.panel", { "aria-label": "Roofline" }), numbers = h("div");
  steps.root.append(fold, said, asTable("The last steps", () => (second.get(), stepsTable(live, live.steps))));
  lanes.root.append(rows, asTable("Sequences", () => (second.get(), lanesTable(live, chosen.get()))));
  blocks.root.append(
    map,
    tree,
    h("p.key", "Prefix tree: a bar is a run of blocks; those below continue it."),
  );
  const by = choice("Group by", model.by, DIVISIONS);
  const figures = h("section.panel", { "aria-label": "Figures" }, h("h2", "Last 5 minutes", by), numbers);
  const panels = h(
    "div.panels",
    h("div.column", steps.root, lanes.root),
    h("div.column", roof, blocks.root, figures),
  );
  return { panels, fold, rows, map, tree, said, steps, lanes, blocks, roof, numbers };
}

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const { element } = createEngine(app);
  element.querySelector(".column")?.append(createReplicas(app));
  root.append(element);
}

/**
 * The view; `beside` another one it has fewer parts.
 * @param {import("../views.js").App} app
 * @param {boolean} [beside]
 */
export function createEngine(app, beside = false) {
  const model = createModel(app), parts = createParts(model);
  const fault = faultLine("status"), { live, paused } = model, beatMs = model.calm ? 1000 : BEAT_MS;
  const say = (/** @type {string} */ text, wrong = true) => {
    fault.say(text);
    fault.element.classList.toggle("fault", wrong);
  };
  const main = frame(parts, beside, [tools(model, say, beside), fault.element, createRest(model, beside)]);
  let drawn = 0, told = -Infinity, ink = palette();
  const pace = paced(() => {
    drawn = performance.now();
    draw(model, parts, main, ink);
    if (drawn - told < WORDS_MS) return;
    told = drawn;
    model.words.set(model.words.peek() + 1);
  }, model.calm ? 1 : 30);
  const beat = setInterval(() => {
    const late = performance.now() - drawn > 1.5 * beatMs; // else events come so often that they move the time
    if (paused.peek() === null && live.steps.length && late) pace.ask();
  }, beatMs);
  effect(() => {
    app.theme.get();
    ink = palette();
  });
  effect(() => {
    for (const each of [model.changed, model.span, paused, model.chosen, app.theme]) each.get();
    pace.ask();
  });
  effect(() => {
    for (const each of [model.words, model.chosen]) each.get();
    describe(model, parts);
  });
  const map = () => drawMap(live, parts, ink);
  effect(() => {
    for (const each of [model.second, app.theme]) each.get();
    map();
  });
  slow(model, parts, (message, old, ended) => (say(message, !ended), main.classList.toggle("old", old)));
  effect(() => {
    app.model.get();
    app.api.key.get();
    watch(model);
  });
  const seen = () => {
    if (document.hidden) model.stop.abort();
    else if (!model.replays.peek()) watch(model);
  };
  const resized = new ResizeObserver(() => (pace.ask(), map()));
  resized.observe(parts.fold);
  document.addEventListener("visibilitychange", seen);
  onEnd(() => {
    model.stop.abort();
    clearInterval(beat);
    resized.disconnect();
    pace.end();
    document.removeEventListener("visibilitychange", seen);
  });
  return { element: main, ...linksOf(model) };
}

/** @param {ReturnType<typeof createParts>} parts @param {boolean} beside @param {HTMLElement[]} top */
function frame({ steps, lanes, roof, panels }, beside, top) {
  if (!beside) return h("main.engine", h("h1.hidden", "Engine"), top, panels);
  return h("aside.engine.beside", { "aria-label": "Engine" }, top, steps.root, lanes.root, roof);
}

/** What the chat needs for its links of tokens and steps. @param {Model} model */
const linksOf = (model) => ({
  model,
  choose: choose.bind(null, model),
  stepOf: stepOf.bind(null, model.live),
  tokensIn: tokensIn.bind(null, model.live),
});

/**
 * What changes once a second, or when a step is chosen.
 * @param {Model} model @param {ReturnType<typeof createParts>} parts @param {(message: string, old: boolean, ended: boolean) => void} tell
 */
function slow(model, { roof, numbers }, tell) {
  const { live } = model;
  let end = () => {}, before = "";
  effect(() => {
    for (const each of [model.second, model.paused, model.chosen, model.span]) each.get();
    const steps = live.steps.slice(firstAfter(live.steps, model.now() - model.span.peek()));
    const chart = roofline(live, steps.slice(-POINTS), model.chosen.peek());
    end();
    const [made, stop] = scope(() =>
      chart ? chartView(chart, { height: 240 }) : h("p.faint", live.hello ? UNMEASURED : "")
    );
    end = stop;
    fill(roof, made);
  });
  effect(() => {
    model.second.get();
    fill(numbers, lately(live, model.by.get()));
  });
  effect(() => {
    const { state, message } = model.connection.get();
    model.second.get();
    const known = live.state === "ready" || live.state === "connecting";
    const told = live.state === "failed" ? "The model could not be loaded." : `The model is ${live.state}.`;
    const text = known ? message : [told, live.error].filter(Boolean).join(" ");
    const old = !known || state === "lost" || state === "refused", now = `${text}${old}`;
    if (state === "lost" && now !== before) model.app.refresh(); // the page says it, too, and learns the model's state
    if (now !== before) tell(text, old, state === "done"); // otherwise a complaint stays until the state changes
    before = now;
  });
  onEnd(() => end());
}

/** What moves with the time. @param {Model} model @param {ReturnType<typeof createParts>} parts @param {HTMLElement} main @param {import("../draw/canvas.js").Ink} ink */
function draw(model, { fold, rows }, main, ink) {
  const { live } = model, { engine } = live.hello ?? {}, most = engine?.slots ?? 0;
  if (!fold.clientWidth) return;
  const step = model.chosen.peek(), now = model.now(), span = model.span.peek();
  const end = model.paused.peek() !== null ? "paused" : model.idle() ? "idle" : "now";
  const view = { now, span, step, end, slots: Math.min(most || 8, Math.max(8, slotsUsed(live, now - span))) };
  const height = `${Math.max(150, Math.min(560, view.slots * 15)) + 30}px`;
  if (main.style.getPropertyValue("--lanes") !== height) main.style.setProperty("--lanes", height);
  drawFold(sheet(fold, ink), live, view);
  drawLanes(sheet(rows, ink), live, view);
}

/** What the pictures show, in words. @param {Model} model @param {ReturnType<typeof createParts>} parts */
function describe({ live, chosen }, { steps, lanes, said }) {
  const last = chosen.peek() ?? live.steps.at(-1), [waiting, running] = live.queue;
  const text = last ? stepText(live, last) : "";
  retext(said, text);
  retext(steps.note, last ? `step ${count(last.n)}` : "");
  retext(lanes.note, `${count(running)} of ${count(live.hello?.engine.slots ?? 0)} slots, ${count(waiting)} waiting`);
}

/** What changes once a second at most. @param {import("../live/state.js").Live} live @param {ReturnType<typeof createParts>} parts @param {import("../draw/canvas.js").Ink} ink */
function drawMap(live, { fold, rows, map, tree, blocks }, ink) {
  fold.setAttribute("aria-label", `Rows of the steps. ${summary(live)} Arrows choose a step, space pauses.`);
  rows.setAttribute("aria-label", `Sequences by slot. ${summary(live)}`);
  const { engine } = live.hello ?? {}, group = live.blocks?.groups[0], size = engine?.groups[0];
  blocks.root.hidden = !group;
  if (!group || !size || !map.clientWidth) return;
  const each = drawBlocks(sheet(map, ink), group), { trees } = live.blocks;
  drawTree(sheet(tree, ink), trees);
  const cell = each > 1 ? `; a cell is ${each} blocks` : "";
  fill(
    blocks.note,
    `${count(group.blocks)} blocks of ${engine.block_size} tokens, ${bytes(size.blocks * size.block_bytes)}${cell}`,
  );
  const parts = partsOf(group).map((part) => `${count(part.count)} ${part.name}`);
  map.setAttribute("aria-label", `KV blocks: ${parts.join(", ")}.`);
  const runs = trees.reduce((/** @type {number} */ sum, /** @type {any} */ { nodes }) => sum + nodes.length, 0);
  tree.setAttribute("aria-label", `Prefix tree: ${count(runs)} runs of blocks.`);
}
