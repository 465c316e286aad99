// @ts-check
/** Values as short texts, as the reports print them (`bench/draw/form.py`). Null and NaN are a dash. */

/**
 * @typedef {number | null | undefined} Value
 * @typedef {readonly (readonly [size: number, unit: string])[]} Units  from the largest on
 */

/** @type {Units} */
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
/** @type {Units} */
const SIZES = [[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]];
/** @type {Units} */
const DURATIONS = [[1, " s"], [1e-3, " ms"], [1e-6, " µs"]];

/**
 * A function that writes numbers as `form` does, and what is none as a sign.
 * @template M
 * @param {(value: number, more?: M) => string} form
 * @returns {(value: Value, more?: M) => string}
 */
const known = (form) => (value, more) => {
  if (value == null || Number.isNaN(value)) return "–";
  return Number.isFinite(value) ? form(value, more) : value > 0 ? "∞" : "-∞";
};

/** @param {number} value @param {number} precision  significant digits */
function withoutExponent(value, precision) {
  const text = Number(value.toPrecision(precision));
  return Math.abs(text) < 1e-6 && text !== 0 ? text.toFixed(12).replace(/0+$/, "") : String(text);
}

/** Three digits and the largest unit that the value reaches. @param {number} value @param {Units} units */
function scaled(value, units) {
  const fits = units.find(([size]) => Math.abs(value) >= size * 0.9995);
  const [size, unit] = fits ?? units[units.length - 1], scaled = value / size;
  return `${Math.abs(scaled) >= 100 ? scaled.toFixed(0) : withoutExponent(scaled, 3)}${unit}`;
}

/** Three digits and a prefix: 0.25, 12, 1.5k, 20M. */
export const number = known((value) => scaled(value, PREFIXES));

/** A time, given in seconds: 1.25 s, 380 ms, 12.5 µs. */
export const seconds = known((value) => value === 0 ? "0" : scaled(value, DURATIONS));

/** 512 B, 1.5 KiB, 470 MiB. */
export const bytes = known((value) => scaled(value, SIZES));

/** A share in percent, with more digits above 99%: 50%, 71.2%, 99.95%. */
export const share = known((value) => {
  const precision = Math.abs(value) > 0.99 && Math.abs(value) < 1 ? 5 : 3;
  return `${withoutExponent(value * 100, precision)}%`;
});

/** A share with two digits. */
export const roughShare = known((value) => share(Number(value.toPrecision(2))));

/** A whole number with separators: 1,312. */
export const count = known((value) => Math.round(value).toLocaleString("en-US"));

/** 1 token, 1,200 tokens. @param {Value} value @param {string} [noun] */
export const tokens = (value, noun = "token") => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** The time of day after some seconds. @param {number} seconds */
export const timeIn = (seconds) => new Date(Date.now() + 1e3 * seconds).toLocaleTimeString();

const CENTS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
const SYMBOLS = /** @type {Record<string, string>} */ ({ USD: "$", EUR: "€", GBP: "£" });

/** Money with two significant digits below a hundredth: $12.30, $0.0032, 4.10 CHF. */
export const money = known((value, currency = "USD") => {
  const size = Math.abs(value), sign = value < 0 ? "-" : "";
  const short = size === 0 || size >= 0.995
    ? size.toLocaleString("en-US", CENTS)
    : withoutExponent(size, size < 0.01 ? 2 : 3);
  const text = short.replace(/\.\d$/, "$&0");
  return currency in SYMBOLS ? `${sign}${SYMBOLS[currency]}${text}` : `${sign}${text} ${currency}`;
});
