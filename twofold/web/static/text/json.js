// @ts-check
/** JSON as a tree that can be folded; text that is not JSON as it is. */

import { h } from "../core/dom.js";

const MAX_UNFOLDED = 3;

/** @param {string} text */
export function jsonView(text) {
  try {
    return h("div.json", view(JSON.parse(text), null, 0));
  } catch {
    return h("pre.json", { tabindex: 0 }, text);
  }
}

/** Whether a text is JSON. @param {string} text */
export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** @param {any} value @param {string | null} name @param {number} depth @returns {HTMLElement} */
function view(value, name, depth) {
  const label = name === null ? "" : h("span.name", `${name}: `);
  if (typeof value !== "object" || value === null) {
    return h("div.leaf", label, h("span", { class: typeof value }, JSON.stringify(value)));
  }
  const entries = Object.entries(value), list = Array.isArray(value);
  const size = `${list ? "[" : "{"}${entries.length}${list ? "]" : "}"}`;
  if (entries.length === 0) return h("div.leaf", label, list ? "[]" : "{}");
  return h(
    "details",
    { open: depth < MAX_UNFOLDED },
    h("summary", label, h("span.faint", size)),
    h("div.inner", entries.map(([key, each]) => view(each, key, depth + 1))),
  );
}
