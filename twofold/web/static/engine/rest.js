// @ts-check
/** What the engine view shows while nothing runs: the last request, and a way to send one. */

import { receipt } from "../chat/receipt.js";
import { ApiError } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { effect } from "../core/signal.js";

const NEWEST = 20;

/** The record of the model's last request with an answer, or null. @param {import("../views.js").App} app */
async function lastRecord({ api, model }) {
  try {
    const { data } = await api.get(`/v1/twofold/requests?limit=${NEWEST}`);
    const last = data.find((/** @type {any} */ each) => each.model === model.peek() && each.output_tokens > 0);
    return last ? await api.get(`/v1/twofold/requests/${last.id}`) : null;
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}

/**
 * @param {import("./model.js").Model} model
 * @param {boolean} beside  the chat, which shows the receipts itself
 */
export function createRest(model, beside) {
  const { app, live } = model, { route, server, api } = app;
  const element = h("section.panel.rest", { "aria-label": "Last request", hidden: true });
  let shown = "";
  /** @param {string} key */
  const show = async (key) => {
    const send = beside ? "Send a message" : h("a", { href: route.href("chat") }, "Send a message");
    fill(element, h("p", "Nothing runs. ", send, " to see it run here."));
    const record = beside ? null : await lastRecord(app);
    if (!record?.prompts.length || key !== shown) return;
    const explain = server.peek()?.can.includes("explain") ? route.href("explore", { request: record.id }) : null;
    const help = () => api.post("/v1/twofold/explain", { request: record.id });
    const message = /** @type {any} */ ({ record });
    element.append(
      h("h2", "The last request", h("span.faint", record.id)),
      receipt(message, { open: true, axis: 0, explain, help }),
    );
  };
  effect(() => {
    model.words.get();
    const key = model.idle() ? `${app.model.get()} ${live.steps.at(-1)?.n}` : "";
    if (key === shown) return;
    shown = key;
    element.hidden = key === "";
    element.parentElement?.classList.toggle("unused", key !== "" && live.steps.length === 0);
    if (key) show(key);
  });
  return element;
}
