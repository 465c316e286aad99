// @ts-check
/** Where the live view gets its events: a model of the server, again and again if the stream is lost, or a recording. */

import { ApiError } from "../core/api.js";
import { sleep } from "../core/clock.js";
import { timeIn } from "../core/form.js";

/** @typedef {(event: string, data: any) => void} Take */
/** @typedef {{state: "open" | "lost" | "refused" | "done", message: string}} Connection */

/** Ticks a second: on two processors, which are often the server's too, 10 slow its steps by a tenth, and 4 do not. */
const HZ = navigator.hardwareConcurrency > 2 ? 10 : 4;

/**
 * Follows a model until `abort`; `tell` hears of the connection.
 * @param {import("../core/api.js").Api} api @param {string} model
 * @param {{abort: AbortSignal, take: Take, tell: (connection: Connection) => void}} to
 */
export async function follow(api, model, { abort, take, tell }) {
  const path = `/v1/twofold/live?model=${encodeURIComponent(model)}&blocks=1&hz=${HZ}`;
  for (let tries = 0; !abort.aborted; tries++) {
    let waitS = Math.min(10, 2 ** tries / 2);
    try {
      const events = await api.stream(path, undefined, { signal: abort });
      for await (const { event, data } of events) {
        if (tries !== 0 || event === "hello") tell({ state: "open", message: "" });
        tries = 0;
        take(event, JSON.parse(data));
      }
      tell({ state: "lost", message: "The server ended the stream." });
    } catch (error) {
      if (abort.aborted) return;
      const known = error instanceof ApiError;
      if (known && (error.refused || error.status === 404)) return tell({ state: "refused", message: error.message });
      const retryS = known ? error.retryAfterS : null;
      const message = known ? error.message : "The live stream was lost.";
      tell({ state: "lost", message: retryS ? `${message} The next try is at ${timeIn(retryS)}.` : message });
      waitS = retryS || waitS;
    }
    await sleep(waitS, abort);
  }
}

/**
 * The events in a recording: a line of JSON each. Throws an Error that says what is wrong.
 * @param {string} text
 * @returns {{event: string, data: any}[]}
 */
export function readRecording(text) {
  const events = text.split("\n").filter((line) => line.trim()).map((line, index) => {
    try {
      const { event, data } = JSON.parse(line);
      if (typeof event === "string" && typeof data === "object" && data) return { event, data };
    } catch {
      // said below
    }
    throw new Error(`Line ${index + 1} is no event of a live stream. Open a file that "Record" has saved.`);
  });
  if (events[0]?.data.schema !== "twofold.live/1") {
    throw new Error('This file does not begin with an event hello of twofold.live/1. Open one that "Record" saved.');
  }
  return events;
}

/**
 * Plays a recording at the speed at which it was made.
 * @param {{event: string, data: any}[]} events
 * @param {{abort: AbortSignal, take: Take, tell: (connection: Connection) => void}} to
 */
export async function play(events, { abort, take, tell }) {
  tell({ state: "open", message: "" });
  const zero = events[0].data.t, began = performance.now();
  for (const { event, data } of events) {
    const wait = typeof data.t === "number" && event !== "blocks" ? data.t - zero - (performance.now() - began) : 0;
    if (wait > 0) await sleep(wait / 1e3, abort);
    if (abort.aborted) return;
    take(event, data);
  }
  tell({ state: "done", message: "The recording has ended." });
}
