// @ts-check
/**
 * Values that tell who reads them when they change.
 *
 * An effect runs at once, then after each change of what it read: synchronously, once for all changes of a `batch`.
 * It does not run if a computed value that it read was computed again with the same result.
 */

/**
 * @typedef {{version: number, observers: Set<Observer>, refresh: () => void}} Source
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
let depth = 0;

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
function stale(observer) {
  for (const [source, version] of observer.sources) {
    source.refresh();
    if (source.version !== version) return true;
  }
  return false;
}

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
  while (waiting.size > 0) {
    const [run] = waiting;
    waiting.delete(run);
    run();
  }
}

/**
 * Effects wait until `change` has returned.
 * @template T
 * @param {() => T} change
 * @returns {T}
 */
export function batch(change) {
  depth += 1;
  try {
    return change();
  } finally {
    if (depth === 1) flush();
    depth -= 1;
  }
}

/**
 * @template T
 * @param {T} value
 * @returns {Signal<T>}
 */
export function signal(value) {
  /** @type {Source} */
  const source = { version: 0, observers: new Set(), refresh: () => {} };
  return {
    get: () => (track(source), value),
    peek: () => value,
    set: (next) => {
      if (Object.is(next, value)) return;
      value = next;
      source.version += 1;
      batch(() => [...source.observers].forEach((observer) => observer.changed()));
    },
  };
}

/**
 * A value made of others, computed when it is read after one of them changed.
 * @template T
 * @param {() => T} compute
 * @returns {ReadSignal<T>}
 */
export function computed(compute) {
  /** @type {T} */
  let value;
  let dirty = true, known = false;
  /** @type {Observer} */
  const observer = {
    sources: new Map(),
    changed: () => {
      if (dirty) return;
      dirty = true;
      [...source.observers].forEach((each) => each.changed());
    },
  };
  /** @type {Source} */
  const source = {
    version: 0,
    observers: new Set(),
    refresh: () => {
      if (!dirty) return;
      dirty = false;
      if (known && !stale(observer)) return;
      forget(observer);
      const next = reading(observer, compute);
      if (!known || !Object.is(next, value)) source.version += 1;
      value = next;
      known = true;
    },
  };
  return {
    get: () => (source.refresh(), track(source), value),
    peek: () => (source.refresh(), value),
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
    if (alive && stale(observer)) start();
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
