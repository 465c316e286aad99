// @ts-check
/** What the engine view shows, and where its events come from. */

import { download } from "../core/parts.js";
import { signal } from "../core/signal.js";
import { apply, createLive } from "../live/state.js";
import { stepText } from "./numbers.js";
import { follow, play, readRecording } from "./stream.js";

/** @typedef {import("../live/state.js").Step} Step */
/** @typedef {ReturnType<typeof createModel>} Model */

const LATE_MS = 2_000;

/** @param {import("../views.js").App} app */
export function createModel(app) {
  const live = createLive();
  const paused = signal(/** @type {number | null} */ (null)), chosen = signal(/** @type {Step | null} */ (null));
  /** Raised when texts may have changed: less often than pictures, as a text costs a layout. */
  const words = signal(0);
  const changed = signal(0), second = signal(0), recorded = signal(/** @type {string[] | null} */ (null));
  const span = signal(10_000), replays = signal(false);
  let ahead = 0;
  const time = () => Math.min(performance.now() + ahead, live.t + LATE_MS);
  /** Whether nothing runs, and no step is in the time shown. */
  const idle = () => {
    const last = live.steps.at(-1), nothing = live.queue.every((count) => count === 0);
    const known = live.hello !== null && !replays.peek() && paused.peek() === null;
    return known && nothing && !(last && last.end > time() - span.peek());
  };
  return {
    app,
    live,
    paused,
    chosen,
    changed,
    second,
    words,
    recorded,
    calm: matchMedia("(prefers-reduced-motion: reduce)").matches,
    connection: signal(/** @type {import("./stream.js").Connection} */ ({ state: "open", message: "" })),
    span,
    by: signal(/** @type {"tiers" | "tenants"} */ ("tiers")),
    replays,
    stop: new AbortController(),
    idle,
    /** The right end of the time shown: it goes on while requests run, and stops where the stream is lost. */
    now: () => {
      if (paused.peek() !== null) return /** @type {number} */ (paused.peek());
      return idle() ? (live.steps.at(-1)?.end ?? live.t) + span.peek() / 10 : time();
    },
    take: (/** @type {string} */ event, /** @type {any} */ data) => {
      recorded.peek()?.push(JSON.stringify({ event, data }));
      apply(live, event, data);
      if (event === "hello") {
        ahead = data.t - performance.now();
        chosen.set(null);
        paused.set(null);
      } else if (event === "tick") ahead = Math.max(ahead, data.t - performance.now());
      if (event !== "tick") [second, words].forEach((each) => each.set(each.peek() + 1));
      changed.set(changed.peek() + 1);
    },
  };
}

/** @param {Model} model @param {(to: any) => Promise<void>} source */
function begin(model, source) {
  model.stop.abort();
  model.stop = new AbortController();
  Object.assign(model.live, createLive());
  source({ abort: model.stop.signal, take: model.take, tell: model.connection.set }).catch((error) => {
    model.connection.set({ state: "lost", message: String(error) });
  });
}

/** Shows the chosen model of the server. @param {Model} model */
export function watch(model) {
  const { api, model: id } = model.app;
  model.replays.set(false);
  if (id.peek() && !document.hidden) begin(model, (to) => follow(api, id.peek(), to));
}

/** Plays a recording; throws an Error that says what is wrong with it. @param {Model} model @param {string} text */
export function replay(model, text) {
  const events = readRecording(text);
  model.replays.set(true);
  begin(model, (to) => play(events, to));
}

/** Starts a recording, or saves it. @param {Model} model */
export function record(model) {
  const lines = model.recorded.peek();
  model.recorded.set(lines ? null : []);
  if (!lines) return watch(model); // so that it begins with hello
  download(lines.join("\n") + "\n", `${model.live.hello?.model ?? "engine"}.live.jsonl`, "application/jsonl");
}

/** Chooses a step, which stops the time. @param {Model} model @param {Step | null} step */
export function choose(model, step) {
  const { paused, span, chosen, app, live } = model;
  if (step) {
    const until = paused.peek() ?? model.now(), seen = step.end <= until && step.t >= until - span.peek();
    paused.set(seen ? until : step.end + span.peek() / 10);
    app.announce(stepText(live, step));
  }
  chosen.set(step);
}

/** Chooses the step so many after the chosen one. @param {Model} model @param {number} by */
export function move(model, by) {
  const { steps } = model.live, last = model.chosen.peek(), at = last ? steps.indexOf(last) : steps.length;
  const step = steps[Math.max(0, Math.min(steps.length - 1, at + by))];
  if (step) choose(model, step);
}

/** Stops the time, or lets it go on. @param {Model} model */
export function pause(model) {
  const on = model.paused.peek() === null;
  model.paused.set(on ? model.now() : null);
  if (!on) model.chosen.set(null);
}
