// @ts-check
/** Chat: messages and answers of the chosen model, as they come. */

import { ApiError, errorFrom } from "../core/api.js";
import { paced } from "../core/clock.js";
import { h } from "../core/dom.js";
import { createMarkdown } from "../text/md.js";

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  /** @type {{role: string, content: string}[]} */
  const messages = [];
  /** @type {AbortController | null} */
  let running = null;
  const talk = h("div", { class: "talk" });
  const box = h("textarea", { id: "say", rows: 2 });
  const button = h("button", { class: "send", type: "submit" }, "Send");
  const form = h(
    "form",
    { class: "composer", "aria-label": "Composer", onsubmit: submit },
    h("div", { class: "box" }, h("label", { class: "hidden", for: "say" }, "Message"), box, button),
  );
  root.append(
    h(
      "main",
      { class: "chat" },
      h("h1", { class: "hidden" }, "Chat"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Conversation" }, talk),
      form,
    ),
  );
  box.focus();
  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    if (running) return running.abort();
    if (box.value.trim()) answer(box.value);
  }
  /** @param {string} question */
  async function answer(question) {
    messages.push({ role: "user", content: question });
    let text = box.value = "";
    const said = h("article", { class: "answer" }), markdown = createMarkdown(said);
    const shown = paced(markdown.draw, 20);
    talk.append(h("div", { class: "ask" }, h("p", {}, question)), said);
    button.textContent = "Stop";
    running = new AbortController();
    try {
      const body = { model: app.model.peek(), messages, stream: true };
      for await (const piece of pieces(app, body, running.signal)) {
        text += piece;
        markdown.write(piece);
        shown.ask();
      }
      app.announce("The answer is complete.");
    } catch (error) {
      if (!(error instanceof ApiError || error instanceof DOMException)) throw error;
      if (error instanceof ApiError) talk.append(h("p", { class: "fault", role: "alert" }, error.message));
    } finally {
      shown.end();
      markdown.draw();
      messages.push({ role: "assistant", content: text });
      running = null;
      button.textContent = "Send";
    }
  }
  return () => running?.abort();
}

/**
 * The pieces of an answer's text. Throws an ApiError, or an AbortError after a stop.
 * @param {import("../views.js").App} app
 * @param {object} body
 * @param {AbortSignal} signal
 */
async function* pieces(app, body, signal) {
  const { events } = await app.api.stream("/v1/chat/completions", body, { signal });
  for await (const { data } of events) {
    if (data === "[DONE]") return;
    const failed = errorFrom(data);
    if (failed) throw failed;
    yield /** @type {string} */ (JSON.parse(data).choices[0]?.delta.content ?? "");
  }
}
