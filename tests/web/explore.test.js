// @ts-check
import assert from "node:assert/strict";
import { fit, niceStep, place, ticksOf, valueAt } from "../../twofold/web/static/draw/scale.js";
import { frontier, machineOf } from "../../twofold/web/static/explore/pareto.js";
import { planBody } from "../../twofold/web/static/explore/plan.js";

Deno.test("scales are those of the reports", () => {
  assert.deepEqual([0.3, 1, 1.1, 3, 7].map(niceStep), [0.5, 1, 2, 5, 10]);
  assert.deepEqual(fit("linear", [3, 97]), { kind: "linear", low: 0, high: 100 });
  assert.deepEqual(fit("log", [0.03, 400, 0, null]), { kind: "log", low: 0.02, high: 500 });
  assert.deepEqual(fit("linear", []), { kind: "linear", low: 0, high: 1 });
  assert.deepEqual(ticksOf({ kind: "linear", low: 0, high: 1 }, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticksOf({ kind: "log", low: 1, high: 1e6 }, 7), [1, 10, 100, 1e3, 1e4, 1e5, 1e6]);
  for (const kind of /** @type {const} */ (["linear", "log"])) {
    const scale = fit(kind, [2, 700]);
    for (const value of [2, 30, 700]) assert.ok(Math.abs(valueAt(scale, place(scale, value)) - value) < 1e-9);
  }
});

Deno.test("the frontier has what nothing is cheaper and faster than", () => {
  const point = (/** @type {number} */ dollars_per_million, /** @type {number} */ tpot_s) => ({
    dollars_per_million,
    tpot_s,
  });
  const found = frontier([{ points: [point(3, 1), point(1, 5)] }, { points: [point(2, 6), point(2, 3), point(4, 1)] }]);
  assert.deepEqual(found.map((each) => each.dollars_per_million), [1, 2, 3]);
});

Deno.test("fields become bodies", () => {
  assert.deepEqual(machineOf("h100:4=2.5"), { hardware: "h100", tp: 4, price_per_hour: 2.5 });
  assert.deepEqual(machineOf(" l4 "), { hardware: "l4" });
  const body = planBody({ machines: "h100:2=3, l4", rate: "2", ttft: "500", devices: "1,2", simulate: "no" });
  assert.deepEqual(body.hardware, ["h100", "l4"]);
  assert.deepEqual(body.slo, { ttft: 0.5, tpot: 0.05, attainment: 0.9 });
  assert.deepEqual([body.tp, body.simulate, body.rate], [[1, 2], false, 2]);
});
