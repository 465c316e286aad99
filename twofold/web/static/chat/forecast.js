// @ts-check
/** What a message would take if it were sent now, told under the message box before it is sent. */

import { ApiError } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { count, money, roughShare, seconds, tokens } from "../core/form.js";
import { onEnd } from "../core/signal.js";
import { whole } from "./request.js";

const PAUSE_MS = 150;

/** @param {string} kind @param {string} text */
const bold = (kind, text) => h("b", { class: kind }, text);

/** A predicted value. @param {number} value @param {(value: number) => string} form */
const about = (value, form) => `≈ ${form(Number(value.toPrecision(2)))}`;

/** A short line, and what its tooltip adds. @param {any} told  the reply of /v1/twofold/estimate */
export function forecastLine(told) {
  const { prompt_tokens: prompt, cached_tokens: cached, output_tokens: output, ahead } = told;
  const { ttft_s: first, e2e_s: all, error } = told;
  const [price] = [...(told.at_prices ?? []), told.cost].filter(Boolean);
  /** @type {import("../core/dom.js").Child[][]} */
  const parts = [[bold("", tokens(prompt)), cached > 0 && [" (", bold("c", `${count(cached)} cached`), ")"]]];
  if (ahead > 0) parts.push([bold("", count(ahead)), " before it"]);
  if (first === null) parts.push(["no times before the first answers"]);
  else parts.push([bold("p", about(first, seconds)), " to first token"]);
  if (all !== null) parts.push([bold("d", about(all, seconds)), ` for ${tokens(output)}`]);
  if (error !== null) parts.push([`±${roughShare(error)}`]);
  const of = told.error_of === "ttft" ? "of the time to the first token" : "of the time of steps";
  const more = [
    price && `${about(price.total, (value) => money(value, price.currency))} at ${price.model ?? "this server"}`,
    error !== null && `±: mean error lately ${of}`,
  ];
  return {
    line: parts.flatMap((part, index) => (index > 0 ? [" · ", ...part] : part)),
    title: more.filter(Boolean).join("\n"),
  };
}

/** @param {{id: string, state: string, error: string | null}} model */
function stateOf({ id, state, error }) {
  if (state === "unloaded") return `${id} is not loaded: the first message loads it.`;
  return state === "failed" ? `${id} could not be loaded. ${error ?? ""}` : `${id} is ${state}.`;
}

/**
 * Keeps `line` true for what is typed, which the result is told.
 * @param {import("../views.js").App} app
 * @param {HTMLElement} line
 * @param {(text: string) => Record<string, any>} body  of a chat with this message
 */
export function createForecast(app, line, body) {
  let abort = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const ask = async (/** @type {string} */ text) => {
    abort = new AbortController();
    try {
      const asked = whole(body(text));
      const told = forecastLine(await app.api.post("/v1/twofold/estimate", asked, { signal: abort.signal }));
      line.title = told.title;
      fill(line, told.line);
    } catch (error) {
      if (!(error instanceof ApiError)) return;
      if (error.status === 0) app.refresh();
      fill(line, [400, 429, 503].includes(error.status) ? error.message.split(". ", 1)[0] : "");
    }
  };
  /** @param {string} text */
  const update = (text) => {
    clearTimeout(timer);
    abort.abort();
    line.title = "";
    const server = app.server.peek(),
      model = server?.models.find((/** @type {any} */ each) => each.id === app.model.peek());
    if (model && model.state !== "ready") return fill(line, stateOf(model));
    if (!text.trim() || !server?.can.includes("estimate")) return fill(line);
    timer = setTimeout(ask, PAUSE_MS, text);
  };
  onEnd(() => (clearTimeout(timer), abort.abort()));
  return update;
}
