// @ts-check
/**
 * What a live stream has told so far: steps, lanes and slots. Pure: `apply` takes the events of GET /v1/twofold/live in
 * their order, from a server or from a recording. Times are milliseconds since the zero of the stream.
 */

/**
 * @typedef {{n: number, t: number, end: number, ms: number, host: number, foreseen: number | null, decode: number, prefill: number, drafts: number, logits: number, attended: number, read: number, draft_ms: number, budget: number | null, why: string, times: number}} Step
 * @typedef {{slot: number, from: number, to: number | null, first: number | null}} Run  in a slot; it decodes from `first` on
 * @typedef {{slot: number, from: number, to: number | null, cause: string}} Pause  after it left that slot
 * @typedef {{number: number, id: string, tenant: string, tier: string, prompt: number | null, arrived: number, cached: number, loaded: number, computed: number, first: number | null, tokens: number, drafted: number, accepted: number, ended: number | null, reason: string, waits: string, runs: Run[], pauses: Pause[]}} Lane
 * @typedef {{state: string, error: string | null, hello: any, t: number, queue: number[], kv: number[] | null, steps: Step[], lanes: Map<number, Lane>, waiting: [number, number][], lately: any, blocks: any}} Live
 */

export const KEEP_MS = 300_000;
export const MAX_STEPS = 20_000;
const MAX_LANES = 3_000;
/** @typedef {import("../chat/tree.js").Message} Message */
const QUEUED = "waits in the queue";
/** @type {Record<string, string>} */
export const CAUSES = {
  blocks: "preempted for lack of blocks",
  tenant: "preempted for another tenant",
  reader: "its client does not read",
  "": "preempted",
};
/** @type {Record<string, string>} */
export const HELD = {
  nothing: "none waited",
  budget: "held back by the token budget",
  rows: "held back by the maximum of rows",
  blocks: "held back by a lack of KV blocks",
  slots: "held back, as all slots were taken",
  loading: "one was loading from the KV store",
};

/** @returns {Live} */
export function createLive() {
  return {
    state: "connecting",
    error: null,
    hello: null,
    t: 0,
    queue: [0, 0],
    kv: null,
    steps: [],
    lanes: new Map(),
    waiting: [],
    lately: null,
    blocks: null,
  };
}

/**
 * Takes an event. A hello begins anew, so nothing is counted twice after a restart or a lost connection.
 * @param {Live} live @param {string} event @param {any} data
 */
export function apply(live, event, data) {
  if (event === "state") Object.assign(live, { state: data.state, error: data.error });
  else if (event === "lately") Object.assign(live, { lately: data, t: Math.max(live.t, data.t) });
  else if (event === "blocks") live.blocks = data;
  else if (event === "hello") {
    Object.assign(live, createLive(), { state: "ready", hello: data, lately: live.lately, blocks: live.blocks });
    advance(live, data);
  } else if (event === "tick") advance(live, data);
}

/** @param {Live} live @param {any} data */
function advance(live, data) {
  live.t = Math.max(live.t, data.t);
  live.queue = data.queue;
  live.kv = data.kv;
  const last = live.waiting.at(-1);
  if (!last || last[1] !== data.queue[0]) live.waiting.push([data.t, data.queue[0]]);
  const { steps } = data, names = Object.keys(steps);
  for (let i = 0; i < steps.n.length; i++) {
    live.steps.push(/** @type {any} */ (Object.fromEntries(names.map((name) => [name, steps[name][i]]))));
  }
  for (const row of data.lanes) followLane(live.lanes, row);
  forget(live);
}

/** @param {Live} live */
function forget(live) {
  const before = live.t - KEEP_MS, { steps, lanes, waiting } = live;
  let old = Math.max(0, steps.length - MAX_STEPS);
  while (old < steps.length && steps[old].end < before) old++;
  if (old > 256 || (old && steps.length > MAX_STEPS)) steps.splice(0, old);
  while (waiting.length > 1 && waiting[1][0] < before) waiting.shift();
  for (const [number, lane] of lanes) {
    if (lane.ended !== null && (lane.ended < before || lanes.size > MAX_LANES)) lanes.delete(number);
  }
}

/** @param {Map<number, Lane>} lanes @param {any[]} row  [number, kind, milliseconds, …] */
function followLane(lanes, [number, kind, at, ...values]) {
  if (kind === "+") {
    if (!lanes.has(number)) lanes.set(number, arrived(number, at, values[0]));
    return;
  }
  const lane = lanes.get(number);
  if (lane) EVENTS[kind]?.(lane, at, values);
}

/** @param {number} number @param {number} at @param {any} about @returns {Lane} */
function arrived(number, at, { id = "", tenant = "", tier = "", prompt = null }) {
  const none = { cached: 0, loaded: 0, computed: 0, tokens: 0, drafted: 0, accepted: 0, first: null, ended: null };
  return { number, id, tenant, tier, prompt, arrived: at, ...none, reason: "", waits: QUEUED, runs: [], pauses: [] };
}

/** @param {Lane} lane @param {number} at @param {string} [cause] */
function leave(lane, at, cause) {
  const run = lane.runs.at(-1), pause = lane.pauses.at(-1);
  if (pause && pause.to === null) pause.to = at;
  if (run && run.to === null) run.to = at;
  if (run && cause !== undefined) lane.pauses.push({ slot: run.slot, from: at, to: null, cause });
}

/** @param {Lane} lane @param {number} at @param {number} slot @param {number | null} first */
function run(lane, at, slot, first) {
  leave(lane, at);
  lane.waits = "";
  lane.runs.push({ slot, from: at, to: null, first });
}

/** @type {Record<string, (lane: Lane, at: number, values: any[]) => void>} */
const EVENTS = {
  a: (lane, at, [slot, cached = 0, loaded = 0]) => {
    run(lane, at, slot, null);
    Object.assign(lane, { cached, loaded, computed: cached });
  },
  p: (lane, at, [computed]) => {
    lane.computed = computed;
    const last = lane.runs.at(-1);
    if (last && last.first !== null && last.to === null) last.first = at; // computed again after a preemption
  },
  f: (lane, at) => {
    lane.first = at;
    const last = lane.runs.at(-1);
    if (last) last.first = at;
  },
  o: (lane, _, [tokens]) => {
    lane.tokens = tokens;
  },
  s: (lane, _, [drafted, accepted]) => Object.assign(lane, { drafted, accepted }),
  x: (lane, at, [cause = ""]) => {
    leave(lane, at, cause);
    lane.waits = CAUSES[cause] ?? cause;
  },
  r: (lane, at, [slot]) => run(lane, at, slot, lane.first === null ? null : at),
  h: (lane, at) => {
    leave(lane, at, "reader");
    lane.waits = CAUSES.reader;
  },
  l: (lane) => {
    lane.waits = "loads its prefix from the KV store";
  },
  u: (lane) => {
    lane.waits = QUEUED;
  },
  ".": (lane, at, [reason, tokens = lane.tokens]) => {
    leave(lane, at);
    Object.assign(lane, { ended: at, reason, tokens, waits: "" });
  },
};

/** The index of the first step that ends after a time. @param {readonly Step[]} steps @param {number} at */
export function firstAfter(steps, at) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle].end < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The step that ran at a time, or the last one before it. @param {Live} live @param {number} at */
export function stepAt({ steps }, at) {
  const next = firstAfter(steps, at);
  return (steps[next]?.t <= at ? steps[next] : steps[next - 1]) ?? null;
}

/** The step that made a token of an answer, null if it is not known any more. @param {Live} live @param {Message} message @param {number} index */
export function stepOf(live, message, index) {
  const number = message.tokens?.[index]?.[5] ?? -1;
  const step = live.steps.findLast(({ n, times }) => n <= number && number < n + times);
  return step && tokensIn(live, message, step).includes(index) ? step : null;
}

/**
 * The tokens of an answer that a step made. Their times, on the engine's clock, are in the step: a restarted engine
 * counts its steps anew.
 * @param {Live} live @param {Message} message @param {Step} step
 */
export function tokensIn({ hello }, { record, model, tokens = [] }, step) {
  if (!record || !hello || model !== hello.model) return [];
  const zero = 1e3 * (record.timeline?.arrival_s - hello.zero), { n, times, t, end } = step;
  const fits = (/** @type {number} */ at) => at >= t && at < end + 1;
  return [...tokens.keys()].filter((index) => {
    const { 2: ms, 5: number } = tokens[index];
    return number >= n && number < n + times && fits(zero + ms);
  });
}

/** The lanes that ran in a step. @param {Live} live @param {Step} step */
export function lanesIn(live, step) {
  return [...live.lanes.values()].filter((lane) =>
    lane.runs.some((each) => each.from < step.end && (each.to ?? Infinity) > step.t)
  );
}

/**
 * The work of a step, by the model's coefficients: where its point lies, and the least time that this machine needs.
 * Null before the machine was measured.
 * @param {Live} live @param {Step} step
 */
export function roofPoint(live, step) {
  const { machine, work } = live.hello ?? {}, rows = step.decode + step.prefill;
  if (!machine || !work || !rows || !step.ms) return null;
  const flops = work.row_flops * rows + work.logit_flops * step.logits + work.pair_flops * step.attended;
  const weights = step.times * (work.weight_bytes + (step.logits ? work.head_bytes : 0));
  const bytes = weights + work.kv_bytes * (step.read + rows);
  const leastMs = 1e3 * Math.max(bytes / machine.bytes_per_s, flops / machine.flops_per_s);
  const foreseen = step.foreseen ? flops / (step.foreseen / 1e3) : null;
  return { x: flops / bytes, y: flops / (step.ms / 1e3), foreseen, leastMs };
}
