// @ts-check
/** Scales of charts, with the rules of `bench/draw/chart.py`: round ends, ticks of 1, 2 or 5 times a power of ten. */

/**
 * @typedef {"linear" | "log"} Kind
 * @typedef {{kind: Kind, low: number, high: number}} Scale
 */

const STEPS = [1, 2, 5, 10];
const HUGE = 1e100;

/** The smallest of 1, 2 and 5 times powers of ten that is at least `rough`. @param {number} rough */
export function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (STEPS.find((step) => step * power >= rough * 0.999999) ?? 10);
}

/**
 * Whether a value has a position.
 * @param {Kind} kind
 * @param {number | null | undefined} value
 * @returns {value is number}
 */
export function placeable(kind, value) {
  return typeof value === "number" && Math.abs(value) < HUGE && (kind === "linear" || value > 1 / HUGE);
}

/**
 * A scale that contains all values; `low` and `high` fix an end.
 * @param {Kind} kind
 * @param {(number | null | undefined)[]} values
 * @param {{low?: number | null, high?: number | null, tight?: boolean, ticks?: number}} [ends]
 * @returns {Scale}
 */
export function fit(kind, values, { low, high, tight = false, ticks = 6 } = {}) {
  const found = values.filter((value) => placeable(kind, value)).map(Number);
  const least = low ?? found.reduce((a, b) => Math.min(a, b), Infinity);
  const most = high ?? found.reduce((a, b) => Math.max(a, b), -Infinity);
  if (kind === "log") {
    const start = Number.isFinite(least) && least > 0 ? least : 1;
    const end = Number.isFinite(most) && most > start ? most : start * 10;
    const power = 10 ** Math.floor(Math.log10(start));
    const round = power * /** @type {number} */ (STEPS.findLast((step) => step * power <= start * 1.000001));
    return { kind, low: low ?? (tight ? start : round), high: high ?? (tight ? end : niceStep(end)) };
  }
  const start = Number.isFinite(least) ? least : 0;
  const end = Number.isFinite(most) && most > start ? most : start + (Math.abs(start) || 1);
  const step = niceStep((end - start) / Math.max(1, ticks));
  return {
    kind,
    low: low ?? (tight ? start : Math.floor(start / step + 1e-9) * step),
    high: high ?? (tight ? end : Math.ceil(end / step - 1e-9) * step),
  };
}

/** A value's share of the way from `low` to `high`. @param {Scale} scale @param {number} value */
export function place({ kind, low, high }, value) {
  return kind === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

/** The value at a share of the way: the inverse of `place`. @param {Scale} scale @param {number} at */
export function valueAt({ kind, low, high }, at) {
  return kind === "log" ? low * (high / low) ** at : low + at * (high - low);
}

/** Round values between both ends. @param {Scale} scale @param {number} limit  about their maximum number */
export function ticksOf({ kind, low, high }, limit) {
  if (kind === "linear") {
    const step = niceStep((high - low) / Math.max(1, limit));
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), decades = last - first;
  const factors = decades <= 3 && decades * 3 <= limit + 3 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil(decades / Math.max(1, limit))), found = [];
  for (let power = first; power <= last; power += stride) {
    found.push(...factors.map((factor) => factor * 10 ** power));
  }
  const inside = found.filter((value) => value >= low * 0.999999 && value <= high * 1.000001);
  return inside.length ? inside : [low, high];
}
