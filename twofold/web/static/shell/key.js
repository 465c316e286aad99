// @ts-check
/** The dialog for the API key. The key is kept in memory, or in the tab's session if the user wants that. */

import { h } from "../core/dom.js";
import { button, formDialog } from "../core/parts.js";

/**
 * @param {import("../core/api.js").Api} api
 * @param {() => void} changed
 */
export function createKeyDialog(api, changed) {
  const field = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false" });
  const keep = h("input", { type: "checkbox", id: "key-keep" });
  const { dialog, say } = formDialog("key", "API key", [
    h("p.faint", "This server wants a key; ", h("code", "twofold keys add NAME"), " makes one."),
    h("label", { for: "key" }, "Key"),
    field,
    h("label.check", { for: "key-keep" }, keep, "Keep it until this tab is closed"),
  ], () => {
    api.setKey(field.value.trim(), keep.checked);
    field.value = "";
    changed();
  });
  const opener = button("Key", () => open(), { hidden: true });
  /** @param {string} [message] why the last key did not do */
  function open(message = "") {
    opener.hidden = false;
    say(message);
    if (!dialog.open) dialog.showModal();
  }
  /** @param {boolean} keyed  the server has keys @param {boolean} now  and needs one now */
  function wanted(keyed, now) {
    opener.hidden = !keyed;
    if (now) open();
  }
  return { dialog, button: opener, open, wanted };
}
