// @ts-check
/**
 * Values whose readers run again when they change.
 *
 * An effect runs at once, then after each change of what it read: synchronously, but after the effect that made the
 * change, once for all its changes. What an effect changes in its first run is seen at once.
 */

/**
 * @typedef {{version: number, observers: Set<Observer>}} Source
 * @typedef {{sources: Map<Source, number>, changed: () => void}} Observer
 */

/**
 * @template T
 * @typedef {{get: () => T, peek: () => T}} ReadSignal `get` subscribes the running effect, `peek` does not.
 */

/**
 * @template T
 * @typedef {ReadSignal<T> & {set: (value: T) => void}} Signal
 */

/** @type {Observer | null} */
let reader = null;
/** @type {(() => void)[] | null} */
let owner = null;
/** @type {Set<() => void>} */
const waiting = new Set();
let flushing = false;

/** @param {Source} source */
function track(source) {
  if (reader === null) return;
  reader.sources.set(source, source.version);
  source.observers.add(reader);
}

/** @param {Observer} observer */
function forget(observer) {
  for (const source of observer.sources.keys()) source.observers.delete(observer);
  observer.sources.clear();
}

/** @param {Observer} observer */
const isStale = ({ sources }) => [...sources].some(([source, version]) => source.version !== version);

/**
 * The result of `read`, whose reads are recorded for `observer`.
 * @template T
 * @param {Observer | null} observer
 * @param {() => T} read
 * @returns {T}
 */
function reading(observer, read) {
  const before = reader;
  reader = observer;
  try {
    return read();
  } finally {
    reader = before;
  }
}

function flush() {
  if (flushing) return;
  flushing = true;
  try {
    for (const run of waiting) {
      waiting.delete(run);
      run();
    }
  } finally {
    flushing = false;
    if (waiting.size > 0) flush(); // after an effect that failed
  }
}

/**
 * @template T
 * @param {T} value
 * @returns {Signal<T>}
 */
export function signal(value) {
  /** @type {Source} */
  const source = { version: 0, observers: new Set() };
  return {
    get: () => (track(source), value),
    peek: () => value,
    set: (next) => {
      if (Object.is(next, value)) return;
      value = next;
      source.version += 1;
      source.observers.forEach((observer) => observer.changed());
      flush();
    },
  };
}

/**
 * Runs `run` now and after changes of what it read. What `run` returns is called before the next run and at the end.
 * @param {() => void | (() => void)} run
 * @returns {() => void} ends it
 */
export function effect(run) {
  /** @type {void | (() => void)} */
  let clean;
  let alive = true;
  /** @type {Observer} */
  const observer = { sources: new Map(), changed: () => waiting.add(again) };
  const tidy = () => {
    if (typeof clean === "function") reading(null, clean);
    clean = undefined;
  };
  const start = () => {
    tidy();
    forget(observer);
    clean = reading(observer, run);
  };
  const again = () => {
    if (alive && isStale(observer)) start();
  };
  const end = () => {
    alive = false;
    waiting.delete(again);
    forget(observer);
    tidy();
  };
  owner?.push(end);
  start();
  return end;
}

/**
 * Calls `end` when the enclosing scope ends.
 * @param {() => void} end
 */
export function onEnd(end) {
  owner?.push(end);
}

/**
 * Runs `make`; the second result ends all effects that it created.
 * @template T
 * @param {() => T} make
 * @returns {[T, () => void]}
 */
export function scope(make) {
  const before = owner;
  /** @type {(() => void)[]} */
  const mine = [];
  owner = mine;
  try {
    return [reading(null, make), () => mine.splice(0).reverse().forEach((end) => end())];
  } finally {
    owner = before;
  }
}
