// @ts-check
/** The fold: rows of prompts above a line, rows of answers below it, on one axis of time. */

import { firstAfter } from "../live/state.js";
import { markStep, RIGHT, timeAxis } from "./canvas.js";

/** @typedef {import("../live/state.js").Live} Live */
/** @typedef {import("../live/state.js").Step} Step */

/**
 * @param {import("./canvas.js").Sheet} sheet @param {Live} live
 * @param {{now: number, span: number, step: Step | null, end: string}} view  `end`: the name of `now`
 */
export function drawFold(sheet, live, { now, span, step, end }) {
  const { c, w, h, ink } = sheet, { x, wide } = timeAxis(sheet, now, span, end);
  const from = firstAfter(live.steps, now - span), axis = Math.round((h - 16) * 0.62), bottom = h - 17;
  let most = 16, deepest = 4;
  for (let i = from; i < live.steps.length; i++) {
    const each = live.steps[i];
    most = Math.max(most, each.prefill / each.times);
    deepest = Math.max(deepest, each.decode / each.times);
  }
  const up = (axis - 6) / most, down = (bottom - axis) / deepest;
  const bars = (/** @type {"prefill" | "decode"} */ name) => {
    c.fillStyle = ink[name];
    for (let i = from; i < live.steps.length && live.steps[i].t <= now; i++) {
      const each = live.steps[i], rows = each[name] / each.times;
      if (!rows) continue;
      const left = x(each.t), width = Math.max(0.7, x(Math.min(each.end, now)) - left - 0.4);
      if (name === "prefill") c.fillRect(left, axis - rows * up, width, rows * up);
      else c.fillRect(left, axis + 1, width, rows * down);
    }
  };
  markStep(sheet, x, step, bottom);
  bars("prefill");
  bars("decode");
  c.fillStyle = ink.ink;
  c.fillRect(0, axis - 0.25, wide, 1.1);
  drawBudget(sheet, live.steps, from, { x, axis, up, most, now });
  c.fillStyle = ink.faint;
  c.textAlign = "left";
  c.textBaseline = "middle";
  c.fillText(String(Math.round(most)), w - RIGHT + 6, 10);
  c.fillText("0", w - RIGHT + 6, axis);
  c.fillText(String(Math.round(deepest)), w - RIGHT + 6, bottom - 4);
}

/** @param {import("./canvas.js").Sheet} sheet @param {Step[]} steps @param {number} from @param {any} scale */
function drawBudget({ c, ink }, steps, from, { x, axis, up, most, now }) {
  c.strokeStyle = ink.ink;
  c.setLineDash([3, 3]);
  c.beginPath();
  for (let i = from; i < steps.length && steps[i].t <= now; i++) {
    const { budget, t, end } = steps[i];
    if (budget === null) continue;
    const y = Math.round(axis - Math.min(budget, most) * up) + 0.5;
    c.moveTo(x(t), y);
    c.lineTo(Math.max(x(t) + 1.5, x(end)), y);
  }
  c.stroke();
  c.setLineDash([]);
}
