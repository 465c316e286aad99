// @ts-check
/** Calls of tools as cards. The page runs two tools itself; the results of others are typed by the user. */

import { h, retext } from "../core/dom.js";
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

/** How closely an operator binds, and its result. @type {Record<string, [level: number, (a: number, b: number) => number]>} */
const OPERATORS = {
  "+": [1, (a, b) => a + b],
  "-": [1, (a, b) => a - b],
  "*": [2, (a, b) => a * b],
  "/": [2, (a, b) => a / b],
  "%": [2, (a, b) => a % b],
  "^": [3, (a, b) => a ** b],
  "**": [3, (a, b) => a ** b],
};

/**
 * The value of an arithmetic expression. Throws an Error that names what it does not understand.
 * @param {string} text
 * @returns {number}
 */
export function calculate(text) {
  const parts = text.match(/\d*\.?\d+(?:[eE][-+]?\d+)?|\*\*|\S/g) ?? [];
  let at = 0;
  /** @returns {number} */
  const atom = () => {
    const part = parts[at++];
    if (part === "-") return -value(3);
    if (part === "+") return value(3);
    if (part === "(") {
      const inner = value(1);
      if (parts[at++] !== ")") throw new Error("a parenthesis is not closed");
      return inner;
    }
    if (part === undefined || !/\d/.test(part)) throw new Error(`${part ?? "the end"} is not a number`);
    return Number(part);
  };
  /** The value of what is joined by operators of at least a level. @param {number} least @returns {number} */
  const value = (least) => {
    let found = atom();
    while (Object.hasOwn(OPERATORS, parts[at]) && OPERATORS[parts[at]][0] >= least) {
      const [level, apply] = OPERATORS[parts[at++]];
      found = apply(found, value(level === 3 ? 3 : level + 1)); // powers from the right
    }
    return found;
  };
  const found = value(1);
  if (at < parts.length) throw new Error(`${parts[at]} is not expected there`);
  return found;
}

/** @param {ToolCall} call @param {...import("../core/dom.js").Child} parts */
const card = ({ name }, ...parts) =>
  h("div.card", { role: "group", "aria-label": `Call of ${name}` }, h("p", "calls ", h("code", name)), parts);

/** Cards of calls that are being written: they grow with their arguments. @param {Element} root @param {readonly ToolCall[]} calls */
export function growCards(root, calls) {
  calls.forEach((call, index) => {
    const shown = root.children[index] ?? root.appendChild(card(call, h("pre.json", { tabindex: 0 })));
    retext(/** @type {Element} */ (shown.lastElementChild), call.arguments);
  });
}

/**
 * Cards of an answer's calls; `done` gets the results, in order, once all are there. Null: only to look at.
 * @param {readonly ToolCall[]} calls
 * @param {((results: string[]) => void) | null} done
 */
export function callCards(calls, done) {
  const fields = calls.map((call) =>
    h("textarea", {
      rows: 2,
      placeholder: "Result",
      "aria-label": `Result of ${call.name}`,
      value: builtInResult(call) ?? "",
    })
  );
  const cards = calls.map((call, index) => card(call, jsonView(call.arguments), done && fields[index]));
  const send = () => done?.(fields.map((field) => field.value));
  return h(
    "div",
    cards,
    done && button(calls.length > 1 ? "Send the results" : "Send the result", send, { class: "send" }),
  );
}
