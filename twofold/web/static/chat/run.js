// @ts-check
/** One answer: its stream, read into its message. */

import { ApiError, errorFrom } from "../core/api.js";
import { paced } from "../core/clock.js";

const HZ = 20;

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {{state: string, ahead?: number, cached?: number, done?: number, of?: number, first_token_ms?: number}} Progress */

/**
 * Asks for an answer and adds it to `message` as it comes. `text` gets each new piece of its content, `changed` is
 * called after each other change. What goes wrong is noted in the message; nothing is thrown.
 * @param {import("../core/api.js").Api} api
 * @param {Record<string, any>} body
 * @param {Message} message
 * @param {{signal: AbortSignal, text: (piece: string) => void, changed: (progress?: Progress) => void}} options
 */
export async function run(api, body, message, { signal, text, changed }) {
  const began = performance.now();
  try {
    const { events } = await api.stream("/v1/chat/completions", body, { signal });
    for await (const { data } of events) {
      if (data === "[DONE]") return;
      const failed = errorFrom(data);
      if (failed) throw failed;
      const chunk = JSON.parse(data);
      if (chunk.twofold?.object === "twofold.request") message.record = chunk.twofold;
      if (chunk.choices.length > 0) take(message, chunk, performance.now() - began, text);
      changed(progressOf(chunk.twofold));
    }
    throw new ApiError("The connection was cut before the answer was complete.");
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") {
      message.finish = "stopped";
      return;
    }
    message.finish = "cut";
    message.fault = faultOf(error);
  }
}

/**
 * Runs an answer and draws its view as it comes, at most HZ times a second.
 * @param {{update: (progress?: Progress | string) => void, write: (piece: string) => void}} view
 * @param {import("../core/api.js").Api} api
 * @param {Record<string, any>} body
 * @param {Message} message
 * @param {AbortSignal} signal
 * @param {Progress | string} [progress]  shown until the server reports another
 */
export async function runInto(view, api, body, message, signal, progress) {
  const draw = paced(() => view.update(progress), HZ);
  draw.ask();
  await run(api, body, message, {
    signal,
    text: view.write,
    changed: (told) => {
      progress = told ?? progress;
      draw.ask();
    },
  });
  draw.end();
}

/** What is shown until a model is loaded. @param {import("../views.js").App} app @param {string} model */
export function loading({ server }, model) {
  const state = server.peek()?.models.find((/** @type {any} */ each) => each.id === model)?.state;
  return state && state !== "ready" ? `${model} is being loaded.` : undefined;
}

/** The progress in a chunk, with the time that is left instead of the time of the first token. @param {any} told */
function progressOf(told) {
  const progress = told?.progress;
  if (typeof progress?.first_token_ms !== "number") return progress;
  return { ...progress, first_token_ms: Math.max(0, progress.first_token_ms - told.at_ms) };
}

/** @param {unknown} error @returns {import("./tree.js").Fault} */
function faultOf(error) {
  if (!(error instanceof ApiError)) {
    return { message: "The connection was cut before the answer was complete.", status: 0, retryAt: null };
  }
  const { message, status, retryAfterS } = error;
  return { message, status, retryAt: retryAfterS === null ? null : Date.now() / 1000 + retryAfterS };
}

/** @param {Message} message @param {any} chunk @param {number} now @param {(piece: string) => void} text */
function take(message, chunk, now, text) {
  const [{ delta, logprobs, finish_reason: finish, token_ids: ids = [] }] = chunk.choices;
  message.ids = (message.ids ?? []).concat(ids);
  if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) takeCall(message, part);
  if (delta.content) {
    message.content += delta.content;
    text(delta.content);
  }
  if (finish) message.finish = finish;
  const { t_ms: times, step = -1, from = "" } = chunk.twofold ?? {};
  const tokens = message.tokens ?? (message.tokens = []);
  (logprobs?.content ?? []).forEach((/** @type {any} */ each, /** @type {number} */ index) => {
    const others = each.top_logprobs.map((/** @type {any} */ top) => [top.token, top.logprob, top.token_id]);
    tokens.push([each.token, each.logprob, times?.[index] ?? now, others, from[index] ?? "d", step]);
  });
  const said = delta.content ?? delta.reasoning_content;
  if (!logprobs && said) tokens.push([said, null, times?.[0] ?? now, [], from[0] ?? "d", step]);
}

/** @param {Message} message @param {any} part */
function takeCall(message, part) {
  const calls = message.calls ?? (message.calls = []);
  const call = calls[part.index] ?? (calls[part.index] = { id: "", name: "", arguments: "" });
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name = part.function.name;
  call.arguments += part.function?.arguments ?? "";
}
