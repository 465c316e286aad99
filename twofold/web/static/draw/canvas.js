// @ts-check
/** Canvases: sized for the screen's pixels, in the colours of the theme. */

/** @typedef {Record<string, any>} Ink  the colours of the theme by name, and `stripes`, a pattern */
/** @typedef {{c: CanvasRenderingContext2D, w: number, h: number, ink: Ink}} Sheet */

const NAMES = "prefill decode cached stall queue empty ink faint rule pin paper you".split(" ");
export const FONT = "10.5px Inter, system-ui, sans-serif";

/** The colours of the current theme. @returns {Ink} */
export function palette() {
  const css = getComputedStyle(document.documentElement);
  const ink = Object.fromEntries(NAMES.map((name) => [name, css.getPropertyValue(`--${name}`).trim()]));
  return { ...ink, stripes: hatch(ink.stall) };
}

/** An empty sheet of the size of the canvas. @param {HTMLCanvasElement} canvas @param {Ink} ink @returns {Sheet} */
export function sheet(canvas, ink) {
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  const width = Math.round(w * ratio), height = Math.round(h * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const c = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, w, h);
  c.font = FONT;
  c.lineWidth = 1;
  return { c, w, h, ink };
}

/** A pattern of stripes. @param {string} colour */
function hatch(colour) {
  const tile = new OffscreenCanvas(5, 5), q = /** @type {OffscreenCanvasRenderingContext2D} */ (tile.getContext("2d"));
  q.strokeStyle = colour;
  q.lineWidth = 1.6;
  q.beginPath();
  for (const [x, y] of [[-1, 6], [-1, 1], [4, 6]]) (q.moveTo(x, y), q.lineTo(x + 7, y - 7));
  q.stroke();
  return q.createPattern(tile, "repeat");
}

export const RIGHT = 36;

/** Marks the time of a step. @param {Sheet} sheet @param {(t: number) => number} x @param {{t: number, end: number} | null} step @param {number} height */
export function markStep({ c, ink }, x, step, height) {
  if (!step) return;
  c.fillStyle = ink.ink;
  c.globalAlpha = 0.16;
  c.fillRect(x(step.t) - 1, 0, Math.max(3, x(step.end) - x(step.t) + 2), height);
  c.globalAlpha = 1;
}

/**
 * Milliseconds along a sheet: the last `span` before `now`, with a line for each fifth of it.
 * @param {Sheet} sheet @param {number} now @param {number} span @param {string} [end]  the name of `now`; without it there are no labels
 */
export function timeAxis({ c, w, h, ink }, now, span, end) {
  const wide = w - RIGHT;
  const x = (/** @type {number} */ t) => Math.max(0, Math.min(wide, wide * (t - now + span) / span));
  c.strokeStyle = ink.rule;
  c.fillStyle = ink.faint;
  c.textBaseline = "alphabetic";
  for (let part = 0; part <= 5; part++) {
    const at = Math.round(x(now - span * part / 5)) + 0.5, seconds = span * part / 5e3;
    c.beginPath();
    c.moveTo(at, 0);
    c.lineTo(at, h - (end ? 15 : 0));
    c.stroke();
    if (!end || part === 5) continue;
    c.textAlign = part ? "center" : "right";
    c.fillText(part ? `−${seconds} s` : end, at, h - 3);
  }
  return { x, wide };
}
