// @ts-check
/** Tables, and each picture as a table for those who cannot see it. */

import { fill, h } from "../core/dom.js";
import { effect, signal } from "../core/signal.js";

/** @typedef {import("../core/dom.js").Child} Child */

/**
 * A table; the first cell of a row is its header.
 * @param {string} caption  for screen readers
 * @param {Child[]} head
 * @param {Child[][]} rows
 * @param {string} [kind]  its class
 */
export function table(caption, head, rows, kind = "stats") {
  return h(
    "table",
    { class: kind },
    h("caption.hidden", caption),
    h("thead", h("tr", head.map((cell) => h("th", { scope: "col" }, cell)))),
    h(
      "tbody",
      rows.map(([name, ...cells]) => h("tr", h("th", { scope: "row" }, name), cells.map((cell) => h("td", cell)))),
    ),
  );
}

/** A place for a table, which can be moved sideways where it is too wide. @param {string} name @param {...Child} content */
export const wide = (name, ...content) => h("div.wide", { tabindex: 0, role: "region", "aria-label": name }, content);

/** A table in such a place. @type {(...given: Parameters<typeof table>) => HTMLElement} */
export const wideTable = (caption, ...given) => wide(caption, table(caption, ...given));

/**
 * A closed section that shows a table while it is open: it is made then, and again after changes of what `make` read.
 * @param {string} caption
 * @param {() => HTMLElement} make
 */
export function asTable(caption, make) {
  const open = signal(false), place = wide(caption);
  effect(() => {
    if (open.get()) fill(place, make());
  });
  return h(
    "details",
    { ontoggle: (/** @type {any} */ { target }) => open.set(target.open) },
    h("summary", "As a table"),
    place,
  );
}
