// @ts-check
/** Keyboard shortcuts, and the dialog that lists them. */

import { h } from "../core/dom.js";
import { button } from "../core/parts.js";
import { onEnd } from "../core/signal.js";

const LIST = [
  ["Enter, Ctrl Enter", "send"],
  ["Shift Enter", "a new line"],
  ["Esc", "stop"],
  ["Ctrl K", "new chat"],
  ["/", "search"],
  ["[ ]", "previous branch, next branch"],
  ["t", "colours of the tokens"],
  ["← →", "another token, in colours"],
  ["e", "engine beside the chat"],
  ["?, Ctrl /", "these keys"],
];

/** @param {Record<string, () => void>} actions  by key; "Ctrl k" for one with Ctrl */
export function createKeys(actions) {
  const dialog = h(
    "dialog.dialog",
    { "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl.keys", LIST.map(([key, what]) => [h("dt", h("kbd", key)), h("dd", what)])),
    h(
      "div.row.end",
      button("Close", () => dialog.close(), { class: "send" }),
    ),
  );
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const ctrl = event.ctrlKey || event.metaKey, typing = target.matches("input, textarea, select");
    if (event.altKey || (typing && !ctrl && event.key !== "Escape") || document.querySelector("dialog[open]")) return;
    const run = event.key === "?" || (ctrl && event.key === "/")
      ? () => dialog.showModal()
      : actions[ctrl ? `Ctrl ${event.key}` : event.key];
    if (!run) return;
    event.preventDefault();
    run();
  };
  addEventListener("keydown", pressed);
  onEnd(() => removeEventListener("keydown", pressed));
  return dialog;
}
