// @ts-check
import assert from "node:assert/strict";
import { nested, partsOf } from "../../twofold/web/static/draw/blocks.js";
import { slotsUsed } from "../../twofold/web/static/draw/lanes.js";
import { lately, roofline, stepText } from "../../twofold/web/static/engine/numbers.js";
import { readRecording } from "../../twofold/web/static/engine/stream.js";
import {
  apply,
  createLive,
  firstAfter,
  KEEP_MS,
  lanesIn,
  roofPoint,
  stepAt,
  stepOf,
  tokensIn,
} from "../../twofold/web/static/live/state.js";

/** @param {number[]} numbers @param {Record<string, any>} [more] */
function columns(numbers, more = {}) {
  const one = { end: 28, ms: 25, host: 1, foreseen: 20, decode: 4, prefill: 0, drafts: 0, logits: 4, attended: 100 };
  const step = { n: 0, t: 0, ...one, read: 100, draft_ms: 0, budget: null, why: "nothing", times: 1, ...more };
  return Object.fromEntries(
    Object.entries(step).map(([name, value]) => [
      name,
      numbers.map((n) => name === "n" ? n : name === "t" ? n * 30 : name === "end" ? n * 30 + 28 : value),
    ]),
  );
}

/** @param {any[][]} lanes @param {number[]} numbers @param {Record<string, any>} [more] */
const told = (lanes, numbers = [], more = {}) => ({
  ...{ t: 1000, queue: [0, 1], kv: [10, 0, 2, 0], steps: columns(numbers), lanes },
  ...more,
});
const MACHINE = { bytes_per_s: 1e9, flops_per_s: 1e12, attention_flops_per_s: 1e12 };
const WORK = {
  ...{ weight_bytes: 1e6, head_bytes: 1e5, row_flops: 1e6, logit_flops: 1e5 },
  ...{ pair_flops: 10, kv_bytes: 100, windows: false },
};
const HELLO = { schema: "twofold.live/1", machine: MACHINE, work: WORK, engine: { slots: 4 } };

/** @param {any[][]} rows */
function lanesOf(...rows) {
  const live = createLive();
  apply(live, "hello", told([], [], HELLO));
  apply(live, "tick", told(rows));
  return live;
}

Deno.test("a lane is preempted, comes back into another slot, and ends", () => {
  const live = lanesOf(
    [7, "+", 10, { id: "req_1", tier: "flex", prompt: 20 }],
    [7, "a", 20, 2, 16, 8],
    [7, "p", 30, 20],
    [7, "f", 30],
    [7, "o", 40, 3],
    [7, "s", 40, 4, 2],
    [7, "x", 50, "blocks", 3],
    [7, "r", 90, 1, 22],
    [7, ".", 120, "stop", 9],
  );
  const lane = /** @type {any} */ (live.lanes.get(7));
  assert.deepEqual(lane.runs, [{ slot: 2, from: 20, to: 50, first: 30 }, { slot: 1, from: 90, to: 120, first: 90 }]);
  assert.deepEqual(lane.pauses, [{ slot: 2, from: 50, to: 90, cause: "blocks" }]);
  assert.deepEqual([lane.cached, lane.loaded, lane.tokens, lane.drafted, lane.accepted], [16, 8, 9, 4, 2]);
  assert.deepEqual([lane.ended, lane.reason, lane.first], [120, "stop", 30]);
  assert.equal(slotsUsed(live, 0), 3);
  assert.equal(slotsUsed(live, 100), 2);
});

Deno.test("what is computed again after a preemption is prefill", () => {
  const live = lanesOf([1, "+", 0, {}], [1, "a", 1, 0], [1, "f", 2], [1, "x", 3, "tenant"], [1, "r", 5, 0, 0], [
    1,
    "p",
    8,
    30,
  ]);
  assert.deepEqual(live.lanes.get(1)?.runs.at(-1), { slot: 0, from: 5, to: null, first: 8 });
});

Deno.test("a lane that waits says for what", () => {
  const live = lanesOf([1, "+", 0, {}], [2, "+", 0, {}], [2, "l", 1, 256], [3, "+", 0, {}], [3, "a", 1, 0], [
    3,
    "h",
    2,
  ]);
  assert.deepEqual([...live.lanes.values()].map((lane) => lane.waits), [
    "waits in the queue",
    "loads its prefix from the KV store",
    "its client does not read",
  ]);
  apply(live, "tick", told([[2, "u", 3], [9, "f", 3], [1, "?", 3]]));
  assert.equal(live.lanes.get(2)?.waits, "waits in the queue");
  assert.equal(live.lanes.size, 3);
});

Deno.test("steps are found by time, with the lanes that ran in them", () => {
  const live = createLive();
  apply(live, "hello", told([[1, "+", 0, {}], [1, "a", 40, 0], [1, ".", 70, "stop", 1]], [0, 1], HELLO));
  apply(live, "tick", told([], [2, 3]));
  assert.deepEqual([-1, 0, 29, 30, 95, 1e6].map((at) => stepAt(live, at)?.n), [undefined, 0, 0, 1, 3, 3]);
  assert.deepEqual(live.steps.map((step) => lanesIn(live, step).length), [0, 1, 1, 0]);
  assert.equal(firstAfter(live.steps, 59), 2);
  assert.equal(firstAfter(live.steps, 1e6), 4);
});

Deno.test("a hello begins anew, and what is old is dropped", () => {
  const live = createLive();
  apply(live, "hello", told([[1, "+", 0, {}]], [0, 1], HELLO));
  apply(live, "hello", told([], [5], HELLO));
  assert.deepEqual([live.steps.length, live.lanes.size, live.state], [1, 0, "ready"]);
  apply(live, "tick", told([[1, "+", 0, {}], [1, "a", 1, 0], [1, ".", 2, "stop", 1]], [...Array(300).keys()]));
  apply(live, "tick", told([], [], { t: KEEP_MS + 5e4 }));
  assert.deepEqual([live.steps.length, live.lanes.size], [0, 0]);
  apply(live, "state", { state: "loading", error: null });
  assert.equal(live.state, "loading");
});

Deno.test("a point lies under its roof where nothing is faster than the machine", () => {
  const live = createLive();
  apply(live, "hello", told([], [0], HELLO));
  const point = /** @type {any} */ (roofPoint(live, live.steps[0]));
  const flops = 4e6 + 4e5 + 1e3, bytes = 1.1e6 + 100 * 104;
  assert.equal(point.x, flops / bytes);
  assert.equal(point.y, flops / 0.025);
  assert.equal(point.leastMs, bytes / 1e6);
  assert.ok(point.y <= point.x * MACHINE.bytes_per_s);
  assert.match(
    stepText(live, live.steps[0]),
    /^Step 0: 0 prompt rows and 4 decode rows; 25 ms, predicted 20 ms; this machine needs at least/,
  );
  assert.match(stepText(live, { ...live.steps[0], decode: 1 }), /: 0 prompt rows and 1 decode row;/);
  const marks = /** @type {any} */ (roofline(live, live.steps, live.steps[0])).marks;
  assert.deepEqual(marks.map((/** @type {any} */ mark) => mark.label), [
    ...["limit of this machine", "predicted", "decode alone", "chosen step"],
  ]);
  apply(live, "hello", told([], [0], { ...HELLO, machine: null }));
  assert.equal(roofline(live, live.steps, null), null);
  assert.equal(typeof lately, "function");
});

Deno.test("blocks add up, and the runs of a tree lie inside of their parents", () => {
  const group = {
    blocks: 100,
    free: 60,
    cached: 20,
    pinned: 2,
    shared: 3,
    store: 1,
    held: [[7, 8], [9, 4]],
    others: 2,
  };
  assert.equal(partsOf(group).reduce((sum, part) => sum + part.count, 0), 100);
  const nodes = [[-1, 0, 4, 2, null], [0, 4, 3, 1, null], [0, 4, 5, 0, 0.5], [-1, 0, 2, 0, 0.1]];
  const bars = nested([{ whole: true, nodes }]);
  assert.deepEqual(bars.map((bar) => [bar.depth, bar.from * 10, bar.width * 10]), [[0, 0, 8], [1, 0, 3], [1, 3, 5], [
    0,
    8,
    2,
  ]]);
});

Deno.test("a recording is read, and anything else is refused with the way out", () => {
  const line = JSON.stringify({ event: "hello", data: { schema: "twofold.live/1", t: 1 } });
  assert.equal(readRecording(`${line}\n${JSON.stringify({ event: "tick", data: {} })}\n\n`).length, 2);
  assert.throws(() => readRecording(`${line}\n{"a": 1}`), /Line 2 is no event/);
  assert.throws(() => readRecording("<html>"), /Line 1 is no event/);
  assert.throws(() => readRecording('{"event": "tick", "data": {}}'), /does not begin with an event hello/);
  assert.throws(() => readRecording(""), /does not begin/);
});

Deno.test("a step made the tokens with its number and time, however long its model was loaded before", () => {
  const live = createLive();
  apply(live, "hello", told([], [1, 2, 3], { ...HELLO, zero: 100, model: "m" }));
  const token = (/** @type {number} */ ms, /** @type {number} */ step) => ["a", null, ms, [], "d", step];
  const message = /** @type {any} */ ({
    model: "m",
    tokens: [token(48, 1), token(78, 2), token(78, 2), token(108, 3)],
    record: { arrived_at: 0, timeline: { arrival_s: 100.01 } },
  });
  assert.deepEqual(live.steps.map((step) => tokensIn(live, message, step)), [[0], [1, 2], [3]]);
  assert.equal(stepOf(live, message, 3), live.steps[2]);
  const before = { ...message, record: { timeline: { arrival_s: 40 } } };
  assert.equal(stepOf(live, before, 3), null);
  assert.deepEqual(tokensIn(live, { ...message, record: {} }, live.steps[0]), []);
});
