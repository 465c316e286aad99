// @ts-check
/** Requests to this server, with the key of the user, and one type for all that can go wrong. */

import { keptText } from "./parts.js";
import { signal } from "./signal.js";
import { eventsOf } from "./sse.js";

/** What went wrong: `status` is 0 if no response arrived, `retryAfterS` null if the server names no time. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, retryAfterS?: number | null}} [details]
   */
  constructor(message, { status = 0, retryAfterS = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.retryAfterS = retryAfterS;
  }

  /** Whether the server wants another key. */
  get refused() {
    return [401, 403].includes(this.status);
  }
}

/**
 * @typedef {{signal?: AbortSignal}} CallOptions
 * @typedef {import("./sse.js").ServerEvent} ServerEvent
 * @typedef {object} Api
 * @property {import("./signal.js").ReadSignal<string>} key  "" for none
 * @property {(key: string, keep?: boolean) => void} setKey  `keep`: until the tab is closed, else until it is reloaded
 * @property {<T = any>(path: string, options?: CallOptions) => Promise<T>} get
 * @property {<T = any>(path: string, body: unknown, options?: CallOptions) => Promise<T>} post
 * @property {<T = any>(path: string, options?: CallOptions) => Promise<T>} remove  DELETE
 * @property {(path: string, body?: unknown, options?: CallOptions) => Promise<AsyncGenerator<ServerEvent, void, void>>} stream
 *   a POST with `body`, else a GET; rejects with an ApiError if the response is not a stream
 */

/** An object without the fields that are undefined. @param {Record<string, any>} fields @returns {any} */
export const given = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

/** @returns {Api} */
export function createApi() {
  const kept = keptText("twofold.key", true), key = signal(kept.get());
  /** @param {string} method @param {string} path @param {unknown} body @param {CallOptions} options */
  const call = async (method, path, body, { signal: abort }) => {
    const sent = new Headers(body === undefined ? {} : { "content-type": "application/json" });
    if (key.peek()) sent.set("authorization", `Bearer ${key.peek()}`);
    const response = await reach(path, {
      method,
      signal: abort,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
    });
    if (!response.ok) throw await errorOf(response);
    return response;
  };
  return {
    key,
    setKey: (value, keep = false) => {
      kept.set(keep ? value : "");
      key.set(value);
    },
    get: async (path, options = {}) => (await call("GET", path, undefined, options)).json(),
    post: async (path, body, options = {}) => (await call("POST", path, body, options)).json(),
    remove: async (path, options = {}) => (await call("DELETE", path, undefined, options)).json(),
    stream: async (path, body, options = {}) =>
      eventsOf(await call(body === undefined ? "GET" : "POST", path, body, options)),
  };
}

/** @param {string} path @param {RequestInit} init */
async function reach(path, init) {
  try {
    return await fetch(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it running?");
  }
}

/**
 * The error in a response, in any of the server's API formats.
 * @param {Response} response
 */
async function errorOf(response) {
  const text = await response.text().catch(() => "");
  const { status, headers } = response;
  const retryMs = Number(headers.get("retry-after-ms") ?? 1e3 * Number(headers.get("retry-after")));
  const details = { status, retryAfterS: retryMs > 0 ? retryMs / 1e3 : null };
  return errorFrom(text, details) ?? new ApiError(`The server answered with status ${status}.`, details);
}

const REMEDY = "Shorten it, start a new chat, or serve the model with a larger --max-model-len.";

/**
 * The ApiError that a body in JSON says, or null. A prompt that is too long gets a sentence for people.
 * @param {string} text
 * @param {{status?: number, retryAfterS?: number | null}} [details]
 */
export function errorFrom(text, details = {}) {
  try {
    const { error } = JSON.parse(text), message = error?.message ?? error;
    if (typeof message !== "string") return null;
    const [limit, asked] = (error.code === "context_length_exceeded" && message.match(/\d+/g)) || [];
    return new ApiError(asked ? `${asked} tokens do not fit the context of ${limit}. ${REMEDY}` : message, details);
  } catch {
    return null;
  }
}
