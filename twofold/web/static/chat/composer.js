// @ts-check
/** The message box: text, files, chips of settings, and the button that sends or stops. */

import { h } from "../core/dom.js";
import { button } from "../core/parts.js";
import { effect } from "../core/signal.js";
import { createFiles } from "./files.js";

/**
 * @param {{send: (text: string) => void, stop: () => void, changed: (text: string, typed: string) => void,
 *   busy: import("../core/signal.js").ReadSignal<boolean>}} options  `changed` gets the message as it would be sent
 */
export function createComposer({ send, stop, changed, busy }) {
  const box = h("textarea", { id: "say", rows: 2, placeholder: "Type a message", onkeydown: key, oninput: grow });
  const files = createFiles(() => grow());
  const chips = h("span.chips"), guess = h("p.guess");
  const sender = h("button.send", { type: "submit" }, "Send");
  effect(() => void (sender.textContent = busy.get() ? "Stop" : "Send"));
  const whole = () => files.with(box.value.trim());
  let sent = { text: "", typed: "", with: files.list() };
  const add = button("Add files", () => files.picker.click());
  const tools = h("div.row.tools", add, files.picker, chips, h("span.spring"), sender);
  const label = h("label.hidden", { for: "say" }, "Message");
  const element = h(
    "form.composer",
    {
      "aria-label": "Composer",
      onsubmit: submit,
      ondrop: (/** @type {DragEvent} */ event) => files.attach([...event.dataTransfer?.files ?? []]),
    },
    files.wrong,
    h("div.box", label, files.attached, box, tools),
    guess,
  );
  function grow() {
    box.rows = Math.min(12, Math.max(2, box.value.split("\n").length));
    changed(files.with(box.value), box.value);
  }
  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    if (busy.peek()) return stop();
    const text = whole();
    if (!text) return;
    sent = { text, typed: box.value, with: files.list() };
    set("");
    send(text);
  }
  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!busy.peek()) element.requestSubmit();
  }
  /** @param {string} text @param {import("./files.js").Attached[]} [attached] */
  function set(text, attached = []) {
    files.set(attached);
    box.value = text;
    grow();
  }
  /** A sent message comes back, unless another one was begun. @param {string} text */
  function giveBack(text) {
    if (whole()) return false;
    if (text === sent.text) set(sent.typed, sent.with);
    else set(text);
    return true;
  }
  /** A message that came back goes. @param {string} text */
  const takeBack = (text) => void (whole() === text && set(""));
  return { element, box, chips, guess, set, giveBack, takeBack };
}
