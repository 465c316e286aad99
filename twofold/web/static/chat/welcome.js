// @ts-check
/** What an empty chat shows: the model, three messages to begin with, and where the keys are listed. */

import { fill, h } from "../core/dom.js";
import { number, tokens } from "../core/form.js";
import { effect } from "../core/signal.js";

/**
 * @typedef {{name: string, text: string, settings: Record<string, any>, colour?: import("../text/tokens.js").Colour}} Example
 *   `colour`: of the answer's tokens
 */

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
};
/** @type {Example[]} */
const EXAMPLES = [
  {
    name: "Surprise of each token",
    text: "Why is the sky blue?",
    settings: { max_tokens: 80 },
    colour: "Surprise",
  },
  {
    name: "JSON schema",
    text: "Ann is 34 years old and lives in Ulm.",
    settings: { max_tokens: 200, form: "JSON schema", form_text: JSON.stringify(PERSON, null, 1) },
  },
  {
    name: "Tool: a calculator",
    text: "Compute 365 * 24.",
    settings: { temperature: 0, max_tokens: 200, calculator: true, tool_choice: "required" },
  },
];

/** @param {any} model  of the server's list */
const factsOf = ({ parameters, quantization, context }) =>
  [
    parameters && `${number(parameters)} parameters`,
    quantization,
    context && `context ${tokens(context)}`,
  ].filter(Boolean).join(" · ");

/** @param {import("../views.js").App} app @param {(example: Example) => void} choose */
export function createWelcome(app, choose) {
  const about = h("div");
  effect(() => {
    const found = app.server.get()?.models.find((/** @type {any} */ each) => each.id === app.model.get());
    fill(about, found && [h("h2", found.id), h("p", factsOf(found))]);
  });
  return h(
    "div.welcome",
    about,
    h(
      "div.examples",
      EXAMPLES.map((example) =>
        h(
          "button.example",
          { type: "button", onclick: () => choose(example) },
          h("b", example.text),
          h("span", example.name),
        )
      ),
    ),
    h(
      "p",
      "Below each answer: where the time went, and the alternatives of every token. ",
      h("span.keyboard", "Press ", h("kbd", "Ctrl /"), " for keys."),
    ),
  );
}
