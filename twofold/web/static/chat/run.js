// @ts-check
/** Answers: their stream, read into their messages. */

import { ApiError, errorFrom } from "../core/api.js";
import { paced } from "../core/clock.js";

const HZ = 20, BEAT_MS = 310;
const CUT = "The connection was cut before the answer was complete.";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {{state: string, ahead?: number, cached?: number, done?: number, of?: number, first_token_ms?: number}} Progress */

/**
 * Asks for answers, one for each message, and adds to them as they come. `text` gets each new piece of content,
 * `changed` is called after each other change. What goes wrong is noted in the messages; nothing is thrown.
 * @param {import("../core/api.js").Api} api
 * @param {Record<string, any>} body
 * @param {readonly Message[]} messages
 * @param {{signal: AbortSignal, text: (message: Message, piece: string) => void,
 *   changed: (progress?: Progress) => void}} options
 */
export async function run(api, body, messages, { signal, text, changed }) {
  const began = performance.now();
  const decoders = messages.map(() => new TextDecoder("utf-8", { ignoreBOM: true }));
  try {
    const events = await api.stream("/v1/chat/completions", body, { signal });
    for await (const { data } of events) {
      if (data === "[DONE]") return;
      const failed = errorFrom(data);
      if (failed) throw failed;
      const chunk = JSON.parse(data), index = chunk.choices[0]?.index ?? 0, message = messages[index];
      if (chunk.twofold?.object === "twofold.request") messages.forEach((each) => (each.record = chunk.twofold));
      if (chunk.choices.length > 0) {
        const piece = takeChunk(message, chunk, performance.now() - began, decoders[index]);
        if (piece) text(message, piece);
      }
      changed(progressOf(chunk.twofold));
    }
    throw new ApiError(CUT);
  } catch (error) {
    const stopped = error instanceof DOMException && error.name === "AbortError";
    const ended = stopped ? { finish: "stopped" } : { finish: "cut", fault: faultOf(error) };
    for (const message of messages) if (!message.finish) Object.assign(message, ended);
  }
}

/**
 * Runs answers and draws those that are shown as they come, at most HZ times a second.
 * @param {(message: Message) => {update: (progress?: Progress | string, waited?: number) => void, write: (piece: string) => void} | undefined} viewOf
 * @param {import("../core/api.js").Api} api
 * @param {Record<string, any>} body
 * @param {readonly Message[]} messages
 * @param {AbortSignal} signal
 * @param {Progress | string} [progress]  shown until the server reports another
 */
export async function runInto(viewOf, api, body, messages, signal, progress) {
  const began = performance.now(), waited = () => (performance.now() - began) / 1e3;
  const draw = paced(() => messages.forEach((message) => viewOf(message)?.update(progress, waited())), HZ);
  const clock = setInterval(draw.ask, BEAT_MS);
  draw.ask();
  await run(api, body, messages, {
    signal,
    text: (message, piece) => viewOf(message)?.write(piece),
    changed: (told) => {
      progress = told ?? progress;
      draw.ask();
    },
  });
  clearInterval(clock);
  draw.end();
}

/** What is shown until a model is loaded. @param {import("../views.js").App} app @param {string} model */
export function loading({ server }, model) {
  const state = server.peek()?.models.find((/** @type {any} */ each) => each.id === model)?.state;
  return state && state !== "ready" ? `${model} is being loaded` : undefined;
}

/**
 * After an answer: asks for another key if that one was refused, and reads the server again if its state has changed.
 * @param {import("../views.js").App} app @param {Message} message
 */
export function reconcile(app, { fault, model = "" }) {
  if (fault && [401, 403].includes(fault.status)) app.askKey(fault.message);
  else if (fault || loading(app, model)) app.refresh();
}

/** The progress in a chunk, with the time that is left instead of the time of the first token. @param {any} told */
function progressOf(told) {
  const progress = told?.progress;
  if (typeof progress?.first_token_ms !== "number") return progress;
  return { ...progress, first_token_ms: Math.max(0, progress.first_token_ms - told.at_ms) };
}

/** @param {unknown} error @returns {import("./tree.js").Fault} */
function faultOf(error) {
  const { message, status, retryAfterS } = error instanceof ApiError ? error : new ApiError(CUT);
  return { message, status, retryAt: retryAfterS === null ? null : Date.now() / 1000 + retryAfterS };
}

/** Adds a chunk to its message; returns the new content. @param {Message} message @param {any} chunk @param {number} now @param {TextDecoder} decoder */
function takeChunk(message, chunk, now, decoder) {
  const [{ delta, logprobs, finish_reason: finish, token_ids: ids = [] }] = chunk.choices;
  message.ids = (message.ids ?? []).concat(ids);
  if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) takeCall(message, part);
  if (delta.content) message.content += delta.content;
  if (finish) message.finish = finish;
  const { t_ms: times, step = -1, from = "" } = chunk.twofold ?? {};
  const tokens = message.tokens ?? (message.tokens = []);
  (logprobs?.content ?? []).forEach((/** @type {any} */ each, /** @type {number} */ index) => {
    const others = each.top_logprobs.map((/** @type {any} */ top) => [top.token, top.logprob, top.token_id]);
    const made = each.bytes ? decoder.decode(new Uint8Array(each.bytes), { stream: true }) : each.token;
    const differs = made === each.token ? [] : [made];
    const token = [each.token, each.logprob, times?.[index] ?? now, others, from[index] ?? "d", step, ...differs];
    tokens.push(/** @type {import("./tree.js").Token} */ (token));
  });
  const said = delta.content ?? delta.reasoning_content;
  if (!logprobs && said) tokens.push([said, null, times?.[0] ?? now, [], from[0] ?? "d", step]);
  return delta.content;
}

/** @param {Message} message @param {any} part */
function takeCall(message, part) {
  const calls = message.calls ?? (message.calls = []);
  const call = calls[part.index] ?? (calls[part.index] = { id: "", name: "", arguments: "" });
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name = part.function.name;
  call.arguments += part.function?.arguments ?? "";
}
