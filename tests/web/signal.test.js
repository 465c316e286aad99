// @ts-check
import assert from "node:assert/strict";
import { effect, scope, signal } from "../../twofold/web/static/core/signal.js";

Deno.test("an effect runs once for each change of what it read", () => {
  const a = signal(1), b = signal(10), seen = /** @type {number[]} */ ([]);
  const end = effect(() => void seen.push(a.get() + b.peek()));
  a.set(2);
  a.set(2);
  b.set(20);
  a.set(4);
  end();
  a.set(5);
  assert.deepEqual(seen, [11, 12, 24]);
});

Deno.test("an effect forgets what it no longer reads", () => {
  const choose = signal(true), a = signal(0), b = signal(0);
  let runs = 0;
  effect(() => {
    runs += 1;
    void (choose.get() ? a.get() : b.get());
  });
  choose.set(false);
  a.set(1);
  assert.equal(runs, 2);
  b.set(1);
  assert.equal(runs, 3);
});

Deno.test("the changes that an effect makes are seen together, after it", () => {
  const a = signal(1), double = signal(0), triple = signal(0);
  effect(() => (double.set(a.get() * 2), triple.set(a.get() * 3)));
  const seen = /** @type {number[]} */ ([]);
  effect(() => void seen.push(triple.get() - double.get()));
  a.set(2);
  a.set(5);
  assert.deepEqual(seen, [1, 2, 5]);
});

Deno.test("after an effect that failed, others run", () => {
  const a = signal(1), b = signal(1), seen = /** @type {number[]} */ ([]);
  effect(() => {
    if (a.get() === 2) throw new Error("no");
  });
  effect(() => void seen.push(b.get()));
  assert.throws(() => a.set(2), /no/);
  b.set(2);
  assert.deepEqual(seen, [1, 2]);
});

Deno.test("if an effect fails, others that read the same run", () => {
  const a = signal(1), seen = /** @type {number[]} */ ([]);
  effect(() => {
    if (a.get() === 2) throw new Error("no");
  });
  effect(() => void seen.push(a.get()));
  assert.throws(() => a.set(2), /no/);
  assert.deepEqual(seen, [1, 2]);
});

Deno.test("a scope ends its effects, which tidy up", () => {
  const a = signal(0), log = /** @type {string[]} */ ([]);
  const [, end] = scope(() =>
    effect(() => {
      log.push(`run ${a.get()}`);
      return () => log.push(`tidy ${a.peek()}`);
    })
  );
  a.set(1);
  end();
  a.set(2);
  assert.deepEqual(log, ["run 0", "tidy 1", "run 1", "tidy 1"]);
});
