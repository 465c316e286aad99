// @ts-check
/** The dialog for the API key. The key is kept in memory, or in the tab's session if the user wants that. */

import { h } from "../core/dom.js";

/**
 * @param {import("../core/api.js").Api} api
 * @param {() => void} changed
 */
export function createKeyDialog(api, changed) {
  const field = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false" });
  const keep = h("input", { type: "checkbox", id: "key-keep" });
  const refusal = h("p", { class: "fault", role: "alert", hidden: true });
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "key-title" },
    h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "key-title" }, "API key"),
      h("p", { class: "faint" }, "This server wants a key; ", h("code", {}, "twofold keys add NAME"), " makes one."),
      refusal,
      h("label", { for: "key" }, "Key"),
      field,
      h("label", { class: "check", for: "key-keep" }, keep, "Keep it until this tab is closed"),
      h(
        "div",
        { class: "row end" },
        h("button", { type: "button", class: "chip", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: "send" }, "Apply"),
      ),
    ),
  );
  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    dialog.close();
    api.setKey(field.value.trim(), keep.checked);
    field.value = "";
    changed();
  }
  const button = h("button", { type: "button", class: "chip", hidden: true, onclick: () => open() }, "Key");
  /** @param {string} [message] why the last key did not do */
  function open(message = "") {
    button.hidden = false;
    refusal.textContent = message;
    refusal.hidden = !message;
    if (!dialog.open) dialog.showModal();
  }
  /** @param {boolean} keyed  the server has keys @param {boolean} now  and needs one now */
  function wanted(keyed, now) {
    button.hidden = !keyed;
    if (now) open();
  }
  return { dialog, button, open, wanted };
}
