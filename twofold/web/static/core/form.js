// @ts-check
/** Values as short texts, as the reports print them (`bench/draw/form.py`). Null and NaN are a dash. */

const NONE = "–";
const PREFIXES = /** @type {const} */ ([[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]);
const SIZES = /** @type {const} */ ([[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]);

/** @typedef {number | null | undefined} Value */

/** @param {Value} value @returns {string | null} */
function missing(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  return Number.isFinite(value) ? null : value > 0 ? "∞" : "-∞";
}

/** Three significant digits without an exponent. @param {number} value */
function digits(value) {
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return withoutExponent(value, 3);
}

/** @param {number} value @param {number} precision */
function withoutExponent(value, precision) {
  const text = Number(value.toPrecision(precision));
  return Math.abs(text) < 1e-6 && text !== 0 ? text.toFixed(12).replace(/0+$/, "") : String(text);
}

/** Three digits and a prefix: 0.25, 12, 1.5k, 20M. @param {Value} value */
export function number(value) {
  const none = missing(value);
  if (none !== null) return none;
  const known = /** @type {number} */ (value);
  for (const [size, prefix] of PREFIXES) {
    if (Math.abs(known) >= size * 0.9995) return `${digits(known / size)}${prefix}`;
  }
  return digits(known);
}

/** A time in s, ms or µs: 1.25 s, 380 ms, 12.5 µs. @param {Value} value seconds */
export function seconds(value) {
  const none = missing(value);
  if (none !== null) return none;
  const known = /** @type {number} */ (value), size = Math.abs(known);
  if (known === 0) return "0";
  if (size < 0.0009995) return `${digits(known * 1e6)} µs`;
  return size < 0.9995 ? `${digits(known * 1e3)} ms` : `${digits(known)} s`;
}

/** The time of day after some seconds. @param {number} seconds */
export const timeIn = (seconds) => new Date(Date.now() + 1e3 * seconds).toLocaleTimeString();

/** A share in percent, with more digits above 99%: 50%, 71.2%, 99.95%. @param {Value} value */
export function share(value) {
  const none = missing(value);
  if (none !== null) return none;
  const known = /** @type {number} */ (value), precision = Math.abs(known) > 0.99 && Math.abs(known) < 1 ? 5 : 3;
  return `${withoutExponent(known * 100, precision)}%`;
}

/** 512 B, 1.5 KiB, 470 MiB. @param {Value} value */
export function bytes(value) {
  const none = missing(value);
  if (none !== null) return none;
  const known = /** @type {number} */ (value);
  for (const [size, unit] of SIZES) if (Math.abs(known) >= size * 0.9995) return `${digits(known / size)} ${unit}`;
  return `${digits(known)} B`;
}

/** A whole number with separators: 1,312. @param {Value} value */
export function count(value) {
  const none = missing(value);
  return none !== null ? none : Math.round(/** @type {number} */ (value)).toLocaleString("en-US");
}

/** 1 token, 1,200 tokens. @param {Value} value @param {string} [noun] */
export function tokens(value, noun = "token") {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

const SYMBOLS = /** @type {Record<string, string>} */ ({ USD: "$", EUR: "€", GBP: "£" });

/** Money with two significant digits below a hundredth: $12.30, $0.0032, 4.10 CHF. @param {Value} value @param {string} [currency] */
export function money(value, currency = "USD") {
  const none = missing(value);
  if (none !== null) return none;
  const known = /** @type {number} */ (value), size = Math.abs(known);
  const short = size === 0 || size >= 0.995 ? size.toFixed(2) : withoutExponent(size, size < 0.01 ? 2 : 3);
  const text = short.replace(/\.\d$/, "$&0");
  const sign = known < 0 ? "-" : "";
  return currency in SYMBOLS ? `${sign}${SYMBOLS[currency]}${text}` : `${sign}${text} ${currency}`;
}
