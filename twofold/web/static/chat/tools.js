// @ts-check
/** Calls of tools as cards. The page runs two tools itself; the results of others are typed by the user. */

import { h } from "../core/dom.js";
import { button } from "../core/parts.js";
import { isJson, jsonView } from "../text/json.js";
import { BUILT_IN } from "./request.js";

/** @typedef {import("./tree.js").ToolCall} ToolCall */

/** Whether the results of an answer's calls can be sent: all are complete. @param {import("./tree.js").Message} message */
export const wantsResults = ({ calls = [], finish }) =>
  finish === "tool_calls" || (finish === "length" && calls.length > 0 && calls.every((call) => isJson(call.arguments)));

/**
 * The result of a call, or null if the page does not have that tool.
 * @param {ToolCall} call
 * @returns {string | null}
 */
export function builtInResult(call) {
  if (call.name === BUILT_IN.clock.name) return new Date().toString();
  if (call.name !== BUILT_IN.calculator.name) return null;
  try {
    return String(calculate(String(JSON.parse(call.arguments).expression)));
  } catch (error) {
    return `Error: ${/** @type {Error} */ (error).message}`;
  }
}

/**
 * The value of an arithmetic expression. Throws an Error that names what it does not understand.
 * @param {string} text
 * @returns {number}
 */
export function calculate(text) {
  const parts = text.match(/\d*\.?\d+(?:[eE][-+]?\d+)?|\S/g) ?? [];
  let at = 0;
  /** @returns {number} */
  const atom = () => {
    const part = parts[at++];
    if (part === "-") return -power();
    if (part === "+") return power();
    if (part === "(") {
      const value = sum();
      if (parts[at++] !== ")") throw new Error("a parenthesis is not closed");
      return value;
    }
    if (part === undefined || !/\d/.test(part)) throw new Error(`${part ?? "the end"} is not a number`);
    return Number(part);
  };
  /** @returns {number} */
  const power = () => {
    const base = atom();
    if (parts[at] !== "^" && !(parts[at] === "*" && parts[at + 1] === "*")) return base;
    at += parts[at] === "^" ? 1 : 2;
    return base ** power();
  };
  const product = () => {
    let value = power();
    while (parts[at] === "*" || parts[at] === "/" || parts[at] === "%") {
      const sign = parts[at++], other = power();
      value = sign === "*" ? value * other : sign === "/" ? value / other : value % other;
    }
    return value;
  };
  const sum = () => {
    let value = product();
    while (parts[at] === "+" || parts[at] === "-") value += parts[at++] === "+" ? product() : -product();
    return value;
  };
  const value = sum();
  if (at < parts.length) throw new Error(`${parts[at]} is not expected there`);
  return value;
}

/**
 * Cards of an answer's calls; `done` gets the results, in order, once all are there. Null: only to look at.
 * @param {readonly ToolCall[]} calls
 * @param {((results: string[]) => void) | null} done
 */
export function callCards(calls, done) {
  const fields = calls.map((call) =>
    h("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, value: builtInResult(call) ?? "" })
  );
  const cards = calls.map((call, index) =>
    h(
      "section",
      { class: "card", "aria-label": `Call of ${call.name}` },
      h("p", {}, "calls ", h("code", {}, call.name)),
      jsonView(call.arguments),
      done && fields[index],
    )
  );
  const send = () => done?.(fields.map((field) => field.value));
  return h("div", {}, cards, done && button("Send the result", send, { class: "send" }));
}
