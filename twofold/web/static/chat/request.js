// @ts-check
/** Bodies of requests, made of a conversation and its settings; the same as text for curl and Python. */

import { given } from "../core/api.js";
import { isJson } from "../text/json.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./tree.js").Conversation} Conversation */
/** @typedef {Record<string, any>} Body */

/**
 * A setting: the field of a body, its words, and its kind. Numbers have their range; `usual` is what holds without it,
 * `note` says what it does.
 * @typedef {{field: string, name: string, kind: "number" | "line" | "text" | "lines" | "select" | "json" | "flag",
 *   group: string, min?: number, max?: number, options?: string[], usual?: string | number, note?: string}} Setting
 */

/** @type {Record<string, [kind: Setting["kind"], field: string, name: string, more?: Partial<Setting>][]>} */
const TABLE = {
  Prompt: [
    ["select", "reasoning_effort", "Thinking", {
      options: ["none", "minimal", "low", "medium", "high", "max"],
      usual: "as the model does",
    }],
    ["number", "thinking_token_budget", "Thinking budget", { min: 0, usual: "no limit", note: "tokens" }],
  ],
  Sampling: [
    ["number", "temperature", "Temperature", { min: 0, max: 5, note: "0: always the most likely token" }],
    ["number", "top_p", "top-p", { min: 0.01, max: 1, usual: 1 }],
    ["number", "seed", "Seed", { usual: "random", note: "same seed, same answer" }],
    ["number", "n", "Completions", { min: 1, max: 16, usual: 1, note: "each is a branch" }],
  ],
  "Output format": [
    ["select", "form", "Output format", {
      options: ["JSON", "JSON schema", "regex", "choice", "grammar"],
      usual: "text",
    }],
    ["text", "form_text", "Format definition"],
    ["number", "max_tokens", "Max. tokens", { min: 1, usual: "the context", note: "tokens of an answer" }],
    ["lines", "stop", "Stop sequences", { note: "texts that end the answer, one per line" }],
  ],
  Tools: [
    ["json", "tools", "Tools", { note: "a JSON list of functions" }],
    ["select", "tool_choice", "Tool choice", {
      options: ["none", "auto", "required"],
      usual: "auto, if there are tools",
      note: "required: until the first result",
    }],
    ["flag", "clock", "Built-in clock", { note: "tells the time" }],
    ["flag", "calculator", "Built-in calculator"],
  ],
  Scheduling: [
    ["select", "service_tier", "Tier", { options: ["default", "flex", "priority"], usual: "default" }],
    ["number", "priority", "Priority", { usual: 0, note: "a lower number goes first" }],
    ["line", "cache_salt", "Private cache", {
      usual: "shared",
      note: "shared only with requests that have this text",
    }],
    ["select", "pin", "Cache lifetime", { options: ["5m", "30m", "1h", "24h"], usual: "while there is room" }],
  ],
  Advanced: [
    ["number", "top_k", "top-k", { min: -1, usual: "all" }],
    ["number", "min_p", "min-p", { min: 0, max: 1, usual: 0 }],
    ["number", "presence_penalty", "Presence penalty", { min: -2, max: 2, usual: 0 }],
    ["number", "frequency_penalty", "Frequency penalty", { min: -2, max: 2, usual: 0 }],
    ["number", "repetition_penalty", "Repetition penalty", { min: 0.1, max: 5, usual: 1 }],
    ["number", "top_logprobs", "Alternatives", { min: 0, max: 20, note: "of each token, for colours and branches" }],
    ["line", "reference", "Reference price", { note: "the model at whose prices answers are compared" }],
    ["json", "other", "Other fields", { note: "a JSON object: any field of /openapi.json" }],
  ],
};
export const GROUPS = Object.keys(TABLE);
/** @type {Setting[]} */
export const SETTINGS = Object.entries(TABLE).flatMap(([group, rows]) =>
  rows.map(([kind, field, name, more]) => ({ kind, field, name, group, ...more }))
);
/** @type {Record<string, any>} */
export const DEFAULTS = { top_logprobs: 4, reference: "claude-sonnet-4-6" };

/** Functions that the page itself can run. */
export const BUILT_IN = {
  clock: {
    name: "current_time",
    description: "The current date and time.",
    parameters: { type: "object", properties: {} },
  },
  calculator: {
    name: "calculate",
    description: "The value of an arithmetic expression with + - * / ^ and parentheses.",
    parameters: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
  },
};
const OWN = new Set(
  "form form_text tools clock calculator cache_salt pin other top_logprobs reference n".split(" "),
);

/**
 * The body for the answer after `messages`; `begun` is the text that it goes on from, `ids` are its tokens if they are
 * known: they are exact where the text could be tokenised differently.
 * @param {string} model
 * @param {Conversation} talk
 * @param {readonly Message[]} messages
 * @param {{begun?: string, ids?: readonly number[], prices?: readonly string[], several?: boolean}} [options]  `prices`:
 *   models with a known price; `several`: as many answers as the settings say
 * @returns {Body}
 */
export function bodyOf(model, talk, messages, { begun: text = "", ids = [], prices = [], several } = {}) {
  const settings = { ...DEFAULTS, ...talk.settings };
  const plain = Object.entries(settings).filter(([field]) => !OWN.has(field));
  const tools = [settings.tools ?? [], builtIn(settings)].flat();
  const begun = ids.length > 0 ? "" : text;
  return given({
    model,
    messages: [
      ...(talk.system ? [{ role: "system", content: talk.system }] : []),
      ...messages.map(sent),
      ...(begun ? [{ role: "assistant", content: begun }] : []),
    ],
    ...Object.fromEntries(plain),
    ...(settings.tool_choice === "required" && messages.at(-1)?.role === "tool" ? { tool_choice: "auto" } : {}),
    ...(settings.top_logprobs > 0 ? { logprobs: true, top_logprobs: settings.top_logprobs } : {}),
    n: several && !text && settings.n > 1 ? settings.n : undefined,
    ...formOf(settings),
    tools: tools.length > 0 ? tools : undefined,
    cache_salt: settings.cache_salt || undefined,
    prompt_cache_options: settings.pin ? { ttl: settings.pin } : undefined,
    continue_final_message: begun ? true : undefined,
    ...settings.other,
    stream: true,
    stream_options: { include_usage: true },
    twofold: given({
      explain: true,
      tokens: true,
      progress: true,
      answer_token_ids: ids.length > 0 ? ids : undefined,
      compare_prices: compared(settings, prices),
    }),
  });
}

/** @param {Record<string, any>} settings */
function builtIn(settings) {
  const names = /** @type {const} */ (["clock", "calculator"]).filter((name) => settings[name]);
  return names.map((name) => ({ type: "function", function: BUILT_IN[name] }));
}

/**
 * The default reference only if the server knows its price; a chosen one always, so that an error says what is wrong.
 * @param {Record<string, any>} settings
 * @param {readonly string[]} prices
 */
function compared({ reference }, prices) {
  const known = prices.some((name) => name === reference || name.endsWith(`/${reference}`));
  return known || reference !== DEFAULTS.reference ? [reference] : undefined;
}

/** @param {Record<string, any>} settings */
function formOf({ form, form_text: text = "" }) {
  if (form === "JSON") return { response_format: { type: "json_object" } };
  if (form === "JSON schema") {
    const schema = isJson(text) ? JSON.parse(text) : text;
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
  }
  if (form === "choice") return { structured_outputs: { choice: text.split("\n").filter(Boolean) } };
  return form ? { structured_outputs: { [form]: text } } : {};
}

/** @param {Message} message */
function sent({ role, content, calls, call }) {
  if (role === "tool") return { role, content, tool_call_id: call };
  if (!calls?.length) return { role, content };
  const made = calls.map(({ id, ...called }) => ({ id, type: "function", function: called }));
  return { role, content: content || null, tool_calls: made };
}

/** The request without a stream, which has no progress. @param {Body} body */
export function whole({ stream: _, stream_options: __, twofold: { progress: ___, ...own }, ...body }) {
  return { ...body, twofold: own };
}

/** Whether answers are JSON. @param {Conversation} talk */
export const isStructured = ({ settings }) => (settings.form ?? "").startsWith("JSON");

/**
 * An answer as text, or its request as text.
 * @param {import("../core/api.js").Api} api @param {"text" | "curl" | "python"} form @param {Message} message @param {Body} body
 */
export function copyOf(api, form, message, body) {
  if (form === "text") return message.content || (message.fault?.message ?? "");
  return (form === "curl" ? asCurl : asPython)(location.origin, body, api.key.peek() !== "");
}

/** The request as a command. @param {string} url @param {Body} body @param {boolean} keyed */
export function asCurl(url, body, keyed) {
  const text = JSON.stringify(whole(body), null, 2).replaceAll("'", "'\\''");
  const key = keyed ? ` \\\n  -H "authorization: Bearer $OPENAI_API_KEY"` : "";
  return `curl ${url}/v1/chat/completions -H 'content-type: application/json'${key} -d '${text}'`;
}

const OPENAI = new Set(
  ("model messages temperature max_tokens n seed top_p presence_penalty frequency_penalty stop logprobs top_logprobs " +
    "reasoning_effort response_format tools tool_choice service_tier").split(" "),
);

/** The request as a program with OpenAI's client. @param {string} url @param {Body} body @param {boolean} keyed */
export function asPython(url, body, keyed) {
  const fields = Object.entries(whole(body));
  const own = Object.fromEntries(fields.filter(([name]) => !OPENAI.has(name)));
  const lines = fields.filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${python(value)},`);
  const key = keyed ? "" : ', api_key="none"';
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${url}/v1"${key})`,
    "reply = client.chat.completions.create(",
    ...lines,
    `    extra_body=${python(own)},`,
    ")",
    "print(reply.choices[0].message.content)",
    "",
  ].join("\n");
}

/** A value as a Python literal. @param {any} value @returns {string} */
function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
}
