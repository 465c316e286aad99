// @ts-check
/**
 * Confidence intervals by bootstrap, as `twofold bench compare` finds them (bench/compare.py says how and why): the same
 * resamples, so the same intervals.
 */

const MAX_RESAMPLES = 1000, MIN_RESAMPLES = 200;
/** Of resamples times requests, and of resamples times values. */
const MAX_CELLS = 1e7, MAX_WORK = 1e8;
/** The browser gets its turn after so many values. */
const TURN = 5e6;

/**
 * Values, and the index of the request that each belongs to.
 * @typedef {{values: Float64Array, owner: Int32Array}} Series
 */

/** @param {readonly (number | null)[]} values  null: none of this request @returns {Series} */
export function seriesOf(values) {
  const owner = Int32Array.from(values.keys()).filter((at) => values[at] !== null);
  return { values: Float64Array.from(owner, (at) => values[at] ?? NaN), owner };
}

/** The mean. @param {Float64Array} values */
export const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** @param {Float64Array} values */
export function medianOf(values) {
  const ascending = values.toSorted(), half = ascending.length >> 1;
  return ascending.length % 2 ? ascending[half] : (ascending[half - 1] + ascending[half]) / 2;
}

/** The smallest value that at least the share of the values do not exceed. @param {Float64Array} ordered  ascending @param {number} share */
export const quantileOf = (ordered, share) => ordered[Math.max(0, Math.ceil(share * ordered.length - 1e-9) - 1)];

/** The number of consecutive values that count as one independent value, or more than `most`. @param {Float64Array} values @param {number} most */
function correlationTime(values, most) {
  const n = values.length, mean = meanOf(values), centred = values.map((value) => value - mean);
  /** @param {number} lag */
  const product = (lag) => {
    let sum = 0;
    for (let at = lag; at < n; at++) sum += centred[at] * centred[at - lag];
    return sum;
  };
  const power = product(0);
  if (n < 4 || power <= 1e-18 * n) return 1;
  let sum = 0;
  for (let lag = 0; lag + 1 < n && 2 * sum - 1 <= most; lag += 2) {
    const pair = (product(lag) + product(lag + 1)) / power;
    if (pair <= 1e-12) break;
    sum += pair;
  }
  return Math.min(n, Math.max(1, 2 * sum - 1));
}

/** Length of a block, at most a quarter of the values. @param {Float64Array} values */
export function blockLength(values) {
  const n = values.length;
  const top = values.reduce((most, value) => Number.isFinite(value) ? Math.max(most, value) : most, -Infinity);
  const finite = values.map((value) => Number.isFinite(value) ? value : top === -Infinity ? 0 : 2 * top);
  const wanted = Math.max(2 * correlationTime(finite, n / 8), Math.cbrt(n));
  return Math.max(1, Math.min(Math.ceil(wanted), Math.floor(n / 4)));
}

/** A hash of 32 bits. @param {number} word */
function mixed(word) {
  word = Math.imul(word ^ (word >>> 16), 0x21f0aaad);
  word = Math.imul(word ^ (word >>> 15), 0xd35a2d97);
  return (word ^ (word >>> 15)) >>> 0;
}

/**
 * Figures of a series in each of many resamples of its requests.
 *
 * @param {Series} series
 * @param {readonly (number | null)[]} wanted  shares of quantiles; null: the mean
 * @param {{n: number, block: number}} requests  and how many neighbours are taken together
 * @param {number} seed
 * @param {AbortSignal} [stop]  rejects what is not finished
 * @returns {Promise<Float64Array[]>}  NaN where a resample has no values
 */
export async function resampled(series, wanted, { n, block }, seed, stop) {
  await turn(stop);
  const { values, owner } = ascending(series), blocks = Math.ceil(n / block), start = mixed(seed);
  const size = Math.max(MIN_RESAMPLES, Math.min(MAX_RESAMPLES, Math.floor(MAX_CELLS / n)));
  const most = wanted[0] === null ? size : Math.max(MIN_RESAMPLES, Math.floor(MAX_WORK / values.length));
  const found = wanted.map(() => new Float64Array(size).fill(NaN)), counts = new Int32Array(n);
  for (let at = 0, work = 0; at < size && at < most; at++) {
    counts.fill(0);
    for (let place = at * blocks; place < (at + 1) * blocks; place++) {
      const first = Math.floor(mixed(start + Math.imul(place, 0x9e3779b9)) / 2 ** 32 * n);
      for (let each = 0; each < block; each++) counts[(first + each) % n] += 1;
    }
    const total = owner.reduce((sum, request) => sum + counts[request], 0);
    wanted.forEach((share, i) => found[i][at] = total ? figureOf(values, owner, counts, total, share) : NaN);
    work += n + (1 + wanted.length) * values.length;
    if (work < TURN) continue;
    work = 0;
    await turn(stop);
  }
  return found;
}

/** Lets the browser draw. @param {AbortSignal} [stop] */
async function turn(stop) {
  await new Promise((resolve) => setTimeout(resolve));
  stop?.throwIfAborted();
}

/** @param {Series} series @returns {Series} */
function ascending({ values, owner }) {
  const order = Int32Array.from(values.keys()).sort((a, b) => values[a] - values[b] || a - b);
  return { values: Float64Array.from(order, (at) => values[at]), owner: Int32Array.from(order, (at) => owner[at]) };
}

/**
 * The mean of values, each `counts[owner]` times, or a nearest rank.
 * @param {Float64Array} values  ascending @param {Int32Array} owner @param {Int32Array} counts @param {number} total  of the counts
 * @param {number | null} share
 */
function figureOf(values, owner, counts, total, share) {
  if (share === null) return values.reduce((sum, value, at) => sum + counts[owner[at]] * value, 0) / total;
  const rank = share * total * (1 - 1e-12);
  let at = -1;
  for (let passed = 0; passed < rank;) passed += counts[owner[++at]];
  return values[at];
}

/**
 * The interval of b/a by the percentiles of resamples; null if unknown. Infinite by infinite is 1.
 * @param {Float64Array} a
 * @param {Float64Array} b
 * @param {number} confidence
 */
export function ratioInterval(a, b, confidence) {
  const ratios = a.slice(0, b.length).map((value, at) => value === Infinity && b[at] === Infinity ? 1 : b[at] / value);
  const known = ratios.filter((ratio) => !Number.isNaN(ratio)).sort(),
    tail = (1 - confidence) / 2,
    last = known.length - 1;
  if (last < 0) return null;
  return { low: known[Math.floor(tail * last)], high: known[Math.ceil((1 - tail) * last)] };
}
