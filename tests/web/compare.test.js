// @ts-check
import assert from "node:assert/strict";
import { differences } from "../../twofold/web/static/compare/differences.js";

/** @param {string} content @param {number} ttft_s @param {number} decode_s @param {number} output @param {number} cached @param {number} swing  of the gaps between tokens, around their mean */
function answer(content, ttft_s, decode_s, output, cached = 0, swing = 0) {
  const phase = { steps: 1 };
  const prompt = {
    queue_s: 0,
    prefill_s: ttft_s,
    decode_s,
    ttft_s,
    output_tokens: output,
    prefill: phase,
    decode: phase,
  };
  const cost = { total: output / 1e6, currency: "USD" };
  const gap = 1e3 * decode_s / (output - 1), of = (/** @type {number} */ at) => at * gap + (at % 2) * swing * gap / 2;
  const timeline = { token_ms: [Array.from({ length: output }, (_, at) => of(at))] };
  const record = { prompts: [prompt], tokens: { prompt: 100, cached, output }, cost, timeline };
  return /** @type {any} */ ({ content, record });
}

Deno.test("differences are named from 5% on", () => {
  const found = differences(answer("one two", 0.3, 1.0, 101), answer("one too", 0.1, 1.04, 101, 80));
  assert.deepEqual(found, [
    "Time to first token: B is 3.0× faster (A 300 ms, B 100 ms).",
    "Cached part of the prompt: A 0%, B 80%. Give each a private cache to compare without it.",
    "Time per output token: no difference above 5% (A 10 ms, B 10.4 ms).",
    "One run each; differences under 5% (time to first token) and 5% (time per output token) are noise here.",
    "Output: A 101 tokens, B 101 tokens.",
    "Cost: no difference above 5% (A $0.0001, B $0.0001).",
    "The texts differ from character 6 on.",
  ]);
});

Deno.test("what the gaps vary by is noise", () => {
  const found = differences(answer("a", 0.0295, 0.1, 11, 0, 0.4), answer("a", 0.0208, 0.1, 11, 0, 0.4));
  assert.equal(found[0], "Time to first token: no difference above 60% (A 29.5 ms, B 20.8 ms).");
  assert.match(
    found[2],
    /^One run each; differences under 60% \(time to first token\) and 19% \(time per output token\) are noise/,
  );
  assert.match(differences(answer("a", 1, 1, 2), answer("a", 0.1, 1, 2))[2], /^One run each, too short/);
});

Deno.test("one that is the beginning of the other differs behind it, and equal texts are the same", () => {
  assert.equal(
    differences(answer("ab", 1, 1, 2), answer("abc", 1, 1, 3)).at(-1),
    "The texts differ from character 3 on.",
  );
  assert.equal(differences(answer("a😀", 1, 1, 2), answer("a😀", 1, 1, 2)).at(-1), "The texts are the same.");
});

Deno.test("nothing is said before both have a record", () => {
  assert.deepEqual(differences(answer("a", 1, 1, 2), null), []);
  assert.deepEqual(differences(/** @type {any} */ ({ content: "cut" }), answer("a", 1, 1, 2)), []);
});
