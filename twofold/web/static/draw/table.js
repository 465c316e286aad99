// @ts-check
/** Tables, and each picture as a table for those who cannot see it. */

import { h } from "../core/dom.js";

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
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, cell)))),
    h(
      "tbody",
      {},
      rows.map(([name, ...cells]) =>
        h("tr", {}, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)))
      ),
    ),
  );
}

/** A place for a table, which can be moved sideways where it is too wide. @param {string} name @param {...Child} content */
export const wide = (name, ...content) =>
  h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name }, content);

/** A table in such a place. @type {(...given: Parameters<typeof table>) => HTMLElement} */
export const wideTable = (caption, ...given) => wide(caption, table(caption, ...given));

/**
 * A closed section that shows a table when it is opened: the rows are made then.
 * @param {string} caption
 * @param {() => [Child[], Child[][]]} make
 */
export function asTable(caption, make) {
  const details = h("details", {}, h("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length < 2) details.append(wideTable(caption, ...make()));
  });
  return details;
}
