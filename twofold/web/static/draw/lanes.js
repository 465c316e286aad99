// @ts-check
/** Lanes: a row for each slot, with the sequences that ran in it one after the other; below, how many wait. */

import { markStep, RIGHT, timeAxis } from "./canvas.js";

/** @typedef {import("../live/state.js").Live} Live */
/** @typedef {import("../live/state.js").Lane} Lane */

const QUEUE = 30;

/** One more than the highest slot in use since a time. @param {Live} live @param {number} since */
export function slotsUsed(live, since) {
  let most = 0;
  for (const lane of live.lanes.values()) {
    for (const run of lane.runs) if ((run.to ?? Infinity) > since) most = Math.max(most, run.slot + 1);
  }
  return most;
}

/**
 * @param {import("./canvas.js").Sheet} sheet @param {Live} live
 * @param {{now: number, span: number, step: import("../live/state.js").Step | null, slots: number}} view
 */
export function drawLanes(sheet, live, { now, span, step, slots }) {
  const { c, h, ink } = sheet, { x, wide } = timeAxis(sheet, now, span);
  const pitch = (h - QUEUE) / Math.max(1, slots), bar = Math.max(1, pitch * 0.66);
  const rect = (/** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ slot) => {
    const left = x(a), right = x(Math.min(b, now));
    if (b > now - span && a < now) {
      c.fillRect(left, slot * pitch + (pitch - bar) / 2, Math.max(0.7, right - left), bar);
    }
  };
  const labels = new Map();
  for (const lane of live.lanes.values()) {
    if ((lane.ended ?? Infinity) < now - span) continue;
    const marked = step && lane.runs.some((run) => run.from < step.end && (run.to ?? Infinity) > step.t);
    for (const pause of lane.pauses) {
      c.fillStyle = ink.stripes;
      rect(pause.from, pause.to ?? now, pause.slot);
    }
    for (const run of lane.runs) {
      const end = run.to ?? now, first = Math.min(run.first ?? end, end);
      c.globalAlpha = marked ? 1 : step ? 0.4 : 0.72;
      c.fillStyle = ink.prefill;
      if (first > run.from) rect(run.from, first, run.slot);
      c.fillStyle = ink.decode;
      if (end > first) rect(first, end, run.slot);
      c.globalAlpha = 1;
      if (run.to === null && run.from <= now) labels.set(run.slot, lane);
    }
    const start = lane.runs[0];
    if (lane.cached && start && start.from > now - span && start.from <= now) {
      c.fillStyle = ink.cached;
      c.fillRect(x(start.from), start.slot * pitch + (pitch - bar) / 2, 3, bar);
    }
  }
  markStep(sheet, x, step, h);
  if (pitch > 10) drawCounts(sheet, labels, slots, pitch);
  drawWaiting(sheet, live, now, span, x, wide);
}

/** @param {import("./canvas.js").Sheet} sheet @param {Map<number, Lane>} labels @param {number} slots @param {number} pitch */
function drawCounts({ c, w, ink }, labels, slots, pitch) {
  c.fillStyle = ink.faint;
  c.textAlign = "left";
  c.textBaseline = "middle";
  for (let slot = 0; slot < slots; slot++) {
    const lane = labels.get(slot);
    if (lane) c.fillText(lane.first === null ? "…" : String(lane.tokens), w - RIGHT + 6, (slot + 0.5) * pitch);
  }
}

/**
 * @param {import("./canvas.js").Sheet} sheet @param {Live} live @param {number} now @param {number} span
 * @param {(t: number) => number} x @param {number} wide
 */
function drawWaiting({ c, w, h, ink }, { waiting }, now, span, x, wide) {
  const base = h - 3, scale = (QUEUE - 10) / Math.max(4, ...waiting.map(([, count]) => count));
  c.fillStyle = ink.queue;
  waiting.forEach(([at, count], i) => {
    const until = waiting[i + 1]?.[0] ?? now;
    if (count && until > now - span && at < now) {
      c.fillRect(x(at), base - count * scale, x(until) - x(at), count * scale);
    }
  });
  c.fillRect(0, base, wide, 0.6);
  c.fillStyle = ink.faint;
  c.textAlign = "left";
  c.textBaseline = "middle";
  c.fillText("wait", w - RIGHT + 6, base - 6);
}
