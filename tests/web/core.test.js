// @ts-check
import assert from "node:assert/strict";
import { errorFrom } from "../../twofold/web/static/core/api.js";
import * as form from "../../twofold/web/static/core/form.js";
import { formatPlace, parsePlace } from "../../twofold/web/static/core/route.js";
import { eventReader } from "../../twofold/web/static/core/sse.js";

Deno.test("values are written as the reports write them", () => {
  assert.deepEqual([0, 1.25, 0.38, 12.5e-6, 2e-3, 100, null, NaN].map(form.seconds), [
    ...["0", "1.25 s", "380 ms", "12.5 µs", "2 ms", "100 s", "–", "–"],
  ]);
  assert.deepEqual([0.25, 12, 1500, 2e7, -1234].map(form.number), ["0.25", "12", "1.5k", "20M", "-1.23k"]);
  assert.deepEqual([0.5, 0.712, 0.9995, 1].map(form.share), ["50%", "71.2%", "99.95%", "100%"]);
  assert.deepEqual([512, 1536, 470 * 2 ** 20].map(form.bytes), ["512 B", "1.5 KiB", "470 MiB"]);
  assert.equal(form.tokens(1), "1 token");
  assert.equal(form.tokens(1312), "1,312 tokens");
  assert.deepEqual([0, 0.00321, 0.123, 0.1, 12.3].map((value) => form.money(value)), [
    "$0.00",
    "$0.0032",
    "$0.123",
    "$0.10",
    "$12.30",
  ]);
  assert.equal(form.money(4.1, "CHF"), "4.10 CHF");
  assert.equal(form.money(-0.001), "-$0.001");
});

Deno.test("a place is a fragment and back", () => {
  assert.deepEqual(parsePlace("", "chat"), { view: "chat", state: {} });
  const state = { model: "a b&c", batch: "16" };
  assert.deepEqual(parsePlace(formatPlace("explore", state), "chat"), { view: "explore", state });
});

const STREAM = ': quiet\n\ndata: {"a": 1}\n\nevent: tick\r\ndata: one\r\ndata: two\r\n\r\ndata:x\rdata\r\rdata: cut';

Deno.test("events are the same in any pieces", () => {
  const whole = eventReader().feed(STREAM);
  assert.deepEqual(whole, [
    { event: "message", data: '{"a": 1}' },
    { event: "tick", data: "one\ntwo" },
    { event: "message", data: "x\n" },
  ]);
  for (let size = 1; size < STREAM.length; size++) {
    const reader = eventReader(), found = [];
    for (let at = 0; at < STREAM.length; at += size) found.push(...reader.feed(STREAM.slice(at, at + size)));
    assert.deepEqual(found, whole);
  }
});

Deno.test("errors of all API formats are read", () => {
  const openai = errorFrom('{"error": {"message": "No.", "code": "x", "param": "n"}}', { status: 400 });
  assert.deepEqual([openai?.message, openai?.status], ["No.", 400]);
  assert.equal(errorFrom('{"error": "No."}')?.message, "No.");
  assert.equal(errorFrom('{"choices": []}'), null);
  assert.equal(errorFrom("<html>"), null);
});
