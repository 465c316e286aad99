// @ts-check
/** The KV cache: a cell for each block, or for several, ordered by what they are; and the prefix tree as nested bars. */

/** @typedef {{kind: string, name: string, count: number}} Part */

/** The blocks of a group by what they are, in the order of the map. @param {any} group @returns {Part[]} */
export function partsOf(group) {
  const alone = group.held.reduce(
    (/** @type {number} */ sum, /** @type {number[]} */ own) => sum + own[1],
    group.others,
  );
  return [
    { kind: "pin", name: "pinned", count: group.pinned },
    { kind: "shared", name: "shared", count: group.shared },
    { kind: "decode", name: "held by one sequence", count: alone },
    { kind: "store", name: "for the KV store", count: group.store },
    { kind: "cached", name: "cached", count: group.cached },
    { kind: "free", name: "free", count: group.free },
  ];
}

/** @param {import("./canvas.js").Sheet} sheet @param {any} group */
export function drawBlocks({ c, w, h, ink }, group) {
  const parts = partsOf(group),
    most = Math.floor(w / 5) * Math.floor(h / 5),
    each = Math.max(1, Math.ceil(group.blocks / most));
  const cells = Math.ceil(group.blocks / each);
  let pitch = 9;
  while (pitch > 5 && Math.floor(w / pitch) * Math.floor(h / pitch) < cells) pitch -= 0.25;
  const columns = Math.floor(w / pitch), size = pitch - 1.25;
  /** @type {Record<string, string>} */
  const colours = {
    pin: ink.cached,
    shared: ink.decode,
    decode: ink.decode,
    store: ink.queue,
    cached: ink.cached,
    free: ink.empty,
  };
  let cell = 0, upto = 0;
  for (const { kind, count } of parts) {
    upto += count;
    const end = count ? Math.max(cell + 1, Math.round(upto / each)) : cell;
    for (; cell < end && cell < cells; cell++) {
      const x = (cell % columns) * pitch, y = Math.floor(cell / columns) * pitch;
      c.fillStyle = colours[kind];
      c.fillRect(x, y, size, size);
      if (kind !== "pin" && kind !== "shared") continue;
      c.strokeStyle = kind === "pin" ? ink.pin : ink.ink;
      c.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
  }
  return each;
}

/**
 * The runs of all trees as nested bars: `from` and `width` are shares of the whole width, which is that of the blocks.
 * @param {any[]} trees
 * @returns {{depth: number, from: number, width: number, blocks: number, holders: number, age: number | null}[]}
 */
export function nested(trees) {
  const bars = trees.flatMap(({ nodes }) => {
    const own = nodes.map((/** @type {any[]} */ [parent, , blocks, holders, age]) => (
      { parent, blocks, holders, age, depth: 0, from: 0, width: 0, inner: 0, used: 0, root: null }
    ));
    for (const bar of own) bar.depth = bar.parent < 0 ? 0 : own[bar.parent].depth + 1;
    for (const bar of [...own].reverse()) {
      bar.width = Math.max(bar.blocks, bar.inner);
      if (bar.parent >= 0) own[bar.parent].inner += bar.width;
    }
    return own.map((/** @type {any} */ bar) => ({ ...bar, up: bar.parent < 0 ? null : own[bar.parent], self: bar }));
  });
  const total = bars.reduce((sum, bar) => sum + (bar.up ? 0 : bar.width), 0) || 1;
  let left = 0;
  return bars.map(({ depth, width, blocks, holders, age, up, self }) => {
    if (up) {
      self.from = up.from + up.used;
      up.used += width;
    } else {
      self.from = left;
      left += width;
    }
    return { depth, from: self.from / total, width: width / total, blocks, holders, age };
  });
}

/** @param {import("./canvas.js").Sheet} sheet @param {any[]} trees */
export function drawTree({ c, w, h, ink }, trees) {
  const bars = nested(trees),
    deepest = Math.max(0, ...bars.map((bar) => bar.depth)),
    pitch = Math.min(14, h / (deepest + 1));
  for (const { depth, from, width, holders, age } of bars) {
    c.fillStyle = holders ? ink.decode : ink.cached;
    c.globalAlpha = holders || age === null ? 0.9 : 0.3 + 0.6 * age;
    c.fillRect(from * w, depth * pitch, Math.max(0.7, width * w - 1), Math.max(1, pitch - 1.5));
  }
  c.globalAlpha = 1;
}
