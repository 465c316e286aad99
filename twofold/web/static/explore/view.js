// @ts-check
/**
 * Explore: requests on any machine. What is asked is in the URL, so that it can be sent to others; the server computes
 * it in a process of its own.
 */

import { fill, h } from "../core/dom.js";
import { choice } from "../core/parts.js";
import { effect, scope } from "../core/signal.js";
import { explainFields, explainPart } from "./levers.js";
import { paretoFields, paretoPart } from "./pareto.js";
import { planFields, planPart } from "./plan.js";
import { priceFields, pricePart } from "./price.js";

/**
 * @typedef {import("./fields.js").Form} Form
 * @typedef {{name: string, alone?: boolean, fields: (form: Form, model: string) => any[], show: (root: HTMLElement, app: import("../views.js").App, form: Form) => {ask: () => void, end: () => void}}} Part

 * `alone`: the part needs no model of this server
 */

/** @type {Record<string, Part>} */
const PARTS = {
  explain: { name: "Explain", fields: explainFields, show: explainPart },
  pareto: { name: "Pace and cost", fields: paretoFields, show: paretoPart },
  price: { name: "Price", fields: priceFields, show: pricePart, alone: true },
  plan: { name: "Plan", fields: planFields, show: planPart, alone: true },
};
/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const fields = h("form", {
    "aria-label": "Request",
    onsubmit: (/** @type {Event} */ e) => e.preventDefault(),
  });
  const partNow = () => app.route.place.get().state.part, result = h("div", { class: "result" });
  const tabs = choice("Parts", {
    get: () => partNow() in PARTS ? partNow() : "explain",
    set: (id) => app.route.go("explore", id === "explain" ? {} : { part: id }),
  }, Object.entries(PARTS).map(([id, { name }]) => /** @type {const} */ ([id, name])));
  const main = h(
    "main",
    { class: "explore" },
    h("h1", { class: "hidden" }, "Explore"),
    h("div", { class: "parts" }, tabs),
    fields,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Result" }, result),
  );
  root.append(main);
  const form = formOf(app);
  let shape = "", end = () => {};
  /** @type {{ask: () => void, end: () => void} | null} */
  let part = null;
  /** @param {string} name @param {string} model */
  const open = (name, model) => {
    end();
    part?.end();
    [, end] = scope(() => {
      fill(fields, PARTS[name].fields(form, model));
      fill(result);
      part = PARTS[name].show(result, app, form);
    });
  };
  effect(() => {
    const { view, state } = app.route.place.get(), model = app.model.get();
    if (view !== "explore") return;
    const name = state.part in PARTS ? state.part : "explain";
    const wanted = JSON.stringify([model, name, state.request]);
    if (wanted !== shape) open(name, model);
    shape = wanted;
    if (model || PARTS[name].alone) part?.ask();
  });
  return () => {
    part?.end();
    end();
  };
}

/** The form whose values are the state of the URL. @param {import("../views.js").App} app @returns {Form} */
function formOf({ route }) {
  const state = () => route.place.peek().state;
  return {
    state,
    change: (more) => {
      /** @type {Record<string, string>} */
      const next = {};
      for (const [name, value] of Object.entries({ ...state(), ...more })) if (value !== null) next[name] = value;
      route.replace(next);
    },
  };
}
