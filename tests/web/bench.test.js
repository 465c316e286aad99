// @ts-check
import assert from "node:assert/strict";
import { chartsOf, differences, namesOf } from "../../twofold/web/static/bench/read.js";

/** @param {string} name @param {any[]} loads @param {any} [settings] */
function result(name, loads, settings = {}) {
  const runs = loads.map((load) => ({ load, summary: {}, requests: [] }));
  return { name, document: { settings, target: { model: "m" }, machine: {}, runs } };
}

Deno.test("settings that differ have the loads of all runs", () => {
  const sweep = result("a", [{ concurrency: 1, input: { length: 8 } }, { concurrency: 2, input: { length: 8 } }]);
  const one = result("b", [{ concurrency: 2, input: { length: 8 } }], { seed: 1 });
  assert.deepEqual(differences([sweep, one]), [["load.concurrency", "1, 2", "2"], ["settings.seed", "–", "1"]]);
  assert.deepEqual(differences([sweep, sweep]), []);
});

Deno.test("runs are named by their load, alone by their result", () => {
  assert.deepEqual(namesOf(result("a", [{ arrivals: { rate: 4 } }, { concurrency: 2 }])), [
    "a, rate 4",
    "a, concurrency 2",
  ]);
  assert.deepEqual(namesOf(result("a", [{ concurrency: 2 }])), ["a"]);
});

Deno.test("output ends with its last token, and no token is lost", () => {
  const request = { measured: true, first_s: 1, gaps_us: [1e6, 2e6], chunk_tokens: 1, ttft_s: 1, due_s: 0, ended_s: 4 };
  const chart = chartsOf({ requests: [{ ...request, last_s: 4 }] }).find(({ title }) => title === "Output");
  const points = /** @type {number[][]} */ (chart?.marks[0].points), step = points[1][0];
  assert.equal(points.at(-1)?.[0], 4);
  assert.equal(points.slice(0, -1).reduce((sum, [, rate]) => sum + rate * step, 0), 3);
});
