// @ts-check
/**
 * A conversation: a tree of messages of which one path is shown. Plain data, so that it is kept and exported as it is.
 *
 * Messages are in the order in which they were made; those with the same parent are branches of each other, of which
 * `chosen` names the shown one.
 */

import { documentIn } from "../core/parts.js";
import { SETTINGS } from "./request.js";

/**
 * @typedef {{id: string, name: string, arguments: string}} ToolCall
 * @typedef {[text: string, logprob: number | null, ms: number, others: [text: string, logprob: number, id?: number][], origin: string, step: number, made?: string]} Token
 *   `ms` since the request; `origin`: d drawn, s guessed, g forced; `step`: its number, or -1; `made`: the text that it
 *   made if it differs: a character of several tokens is made by the last of them
 * @typedef {{message: string, status: number, retryAt: number | null}} Fault  `retryAt`: Unix seconds
 * @typedef {object} Message
 * @property {string} id
 * @property {string} parent  "" for the first one
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {ToolCall[]} [calls]
 * @property {string} [call]  of a tool's result: the id of the call
 * @property {string} [name]
 * @property {string} [model]
 * @property {number} [choice]  of several answers of one request: its index
 * @property {string} [begun]  the text that the answer went on from
 * @property {number[]} [ids]  of its tokens, those that it went on from first
 * @property {number} [begunIds]  the number of those
 * @property {Token[]} [tokens]
 * @property {string} [finish]  "stop", "length", "tool_calls", "stopped" by the user, "cut" with its stream
 * @property {any} [record]
 * @property {Fault} [fault]
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {number} created  Unix seconds
 * @property {number} updated
 * @property {string} system
 * @property {Record<string, any>} settings
 * @property {Message[]} messages
 * @property {Record<string, string>} chosen  by parent
 */

export const newId = () => crypto.randomUUID();

/** @returns {Conversation} */
export function newConversation(settings = {}) {
  const now = Date.now() / 1000;
  return { id: newId(), title: "", created: now, updated: now, system: "", settings, messages: [], chosen: {} };
}

/** @param {Conversation} talk @param {string} parent */
const branchesBelow = (talk, parent) => talk.messages.filter((message) => message.parent === parent);

/**
 * Whether an answer has nothing to read: refused, cut or stopped before it began. Its question is not part of later
 * requests.
 * @param {Message} message
 */
export const isUnanswered = ({ role, content, calls, finish }) =>
  role === "assistant" && !content && !calls?.length && [undefined, "stopped", "cut"].includes(finish);

/**
 * The messages that a request sends, of those before it: questions without an answer are left out, and what the user
 * said twice in a row, as an imported file may have it, is one message.
 * @param {readonly Message[]} messages
 */
export function asked(messages) {
  /** @type {Message[]} */
  const found = [];
  messages.forEach((message, index) => {
    const last = found.at(-1), next = messages[index + 1];
    if (isUnanswered(message) || (message.role === "user" && next && isUnanswered(next))) return;
    if (message.role === "user" && last?.role === "user") {
      found[found.length - 1] = { ...last, content: `${last.content}\n\n${message.content}` };
    } else found.push(message);
  });
  return found;
}

/** The shown messages, in order. @param {Conversation} talk @returns {Message[]} */
export function path(talk) {
  /** @type {Map<string, Message>} */
  const last = new Map();
  for (const message of talk.messages) {
    const { parent, id } = message;
    if (!last.has(parent) || talk.chosen[parent] === id || talk.chosen[parent] === undefined) last.set(parent, message);
  }
  const found = [];
  for (let next = last.get(""); next && found.length < talk.messages.length; next = last.get(next.id)) found.push(next);
  return found;
}

/** Adds a message below `parent` and shows it. @param {Conversation} talk @param {Omit<Message, "id">} message */
export function add(talk, message) {
  const added = { id: newId(), ...message };
  talk.messages.push(added);
  talk.chosen[added.parent] = added.id;
  talk.updated = Date.now() / 1000;
  if (!talk.title && message.role === "user") talk.title = titleOf(message.content);
  return added;
}

/** Removes a message that has none below it. @param {Conversation} talk @param {Message} message */
export function drop(talk, { id, parent }) {
  talk.messages = talk.messages.filter((each) => each.id !== id);
  if (talk.chosen[parent] === id) delete talk.chosen[parent];
  if (talk.messages.length === 0) talk.title = "";
}

/** @param {string} text */
function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

/** Where a message is among its branches, from 1. @param {Conversation} talk @param {Message} message */
export function branch(talk, message) {
  const all = branchesBelow(talk, message.parent);
  return { number: all.findIndex((each) => each.id === message.id) + 1, of: all.length };
}

/** Shows another branch; returns whether there is one. @param {Conversation} talk @param {Message} message @param {number} by */
export function turn(talk, message, by) {
  const all = branchesBelow(talk, message.parent), at = all.findIndex((each) => each.id === message.id);
  const next = all[at + by];
  if (next) talk.chosen[message.parent] = next.id;
  return next !== undefined;
}

/** Prompt and output tokens, cached ones, and seconds of both phases of all answers. @param {Message[]} messages */
export function sums(messages) {
  const sum = { prompt: 0, cached: 0, output: 0, prefill: 0, decode: 0 };
  for (const { record, choice = 0 } of messages) {
    if (!record || choice > 0) continue;
    sum.prompt += record.tokens.prompt;
    sum.cached += record.tokens.cached;
    sum.output += record.tokens.output;
    for (const each of record.prompts) {
      sum.prefill += each.prefill_s;
      sum.decode += each.decode_s;
    }
  }
  return sum;
}

export const EXPORT = "twofold.chat/1";

/** @param {Conversation[]} talks */
export const exported = (talks) => JSON.stringify({ schema: EXPORT, conversations: talks }, null, 1);

/**
 * The conversations of an exported file. Throws an Error that says what is wrong with it.
 * @param {string} text
 * @returns {Conversation[]}
 */
export function imported(text) {
  return documentIn(text, EXPORT, "conversations", "This file is not an export of this page").conversations.map(
    checked,
  );
}

const ROLES = ["user", "assistant", "tool"];

/** @param {any} talk @param {number} index @returns {Conversation} */
function checked(talk, index) {
  const where = `Conversation ${index + 1} of this file`;
  const texts = [talk?.id, talk?.title, talk?.system].every((each) => typeof each === "string");
  const times = Number.isFinite(talk?.created) && Number.isFinite(talk?.updated);
  const maps = [talk?.settings, talk?.chosen].every((each) => typeof each === "object" && each !== null);
  if (!texts || !times || !maps || !Array.isArray(talk.messages)) throw new Error(`${where} is damaged.`);
  const known = new Set([""]);
  for (const { id, parent, role, content } of talk.messages.map((/** @type {unknown} */ each) => each ?? {})) {
    const good = typeof id === "string" && known.has(parent) && ROLES.includes(role) && typeof content === "string";
    if (!good || known.has(id)) throw new Error(`${where} has a damaged message.`);
    known.add(id);
  }
  const { id, title, created, updated, system, settings, messages, chosen } = talk;
  const set = SETTINGS.filter(({ field, kind }) => KINDS[kind](settings[field]));
  const given = Object.fromEntries(set.map(({ field }) => [field, settings[field]]));
  return { id, title, created, updated, system, settings: given, messages: messages.map(plainMessage), chosen };
}

const isText = (/** @type {unknown} */ value) => typeof value === "string";
const isObject = (/** @type {unknown} */ value) => typeof value === "object" && value !== null;
const areAll = (/** @type {(each: any) => boolean} */ fits) => (/** @type {unknown} */ value) =>
  Array.isArray(value) && value.every(fits);
/** What the values of settings are. @type {Record<string, (value: any) => boolean>} */
const KINDS = {
  ...{ number: Number.isFinite, line: isText, text: isText, select: isText, lines: areAll(isText), json: isObject },
  flag: (value) => value === true,
};

/** What the fields of messages are that are no texts. @type {Record<string, (value: any) => boolean>} */
const FIELDS = {
  tokens: areAll((token) => isText(token?.[0]) && areAll((other) => isText(other?.[0]))(token[3])),
  calls: areAll((call) => [call?.id, call?.name, call?.arguments].every(isText)),
  record: (record) => areAll(isObject)(record?.prompts) && isObject(record.tokens),
  ids: areAll(Number.isInteger),
  ...{ begunIds: Number.isInteger, choice: Number.isInteger },
};

/** A message with the fields that are shown, each of its type. @param {any} message @returns {any} */
const plainMessage = (message) =>
  Object.fromEntries(Object.entries(message).filter(([name, value]) => (FIELDS[name] ?? isText)(value)));
