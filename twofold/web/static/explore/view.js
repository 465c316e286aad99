// @ts-check
/**
 * Explore: requests on any machine. What is asked is in the URL, so that it can be sent to others; the server computes
 * it in a process of its own.
 */

import { fill, h } from "../core/dom.js";
import { choice } from "../core/parts.js";
import { effect, onEnd, scope } from "../core/signal.js";
import { asking } from "./fields.js";
import { explainBody, explainFields, explanation } from "./levers.js";
import { curveBody, paretoFields, paretoOf } from "./pareto.js";
import { openPlan, planFields } from "./plan.js";
import { priceBody, priceFields, pricesOf } from "./price.js";

/**
 * @typedef {import("./fields.js").Form} Form
 * @typedef {{path: string, body: (state: import("./fields.js").State, model: string) => any, show: (found: any, form: Form) => import("../core/dom.js").Child}} Question
 *   an endpoint that is asked again after each change, its body, and what shows its reply
 * @typedef {{name: string, fields: (form: Form, model: string) => any[], alone?: boolean, question?: Question, open?: (root: HTMLElement, app: import("../views.js").App, form: Form) => void}} Part
 *   `alone`: the part needs no model of this server; `open`: shows it if it has no question
 */

/** @type {Record<string, Part>} */
const PARTS = {
  explain: {
    name: "Explain",
    fields: explainFields,
    question: { path: "/v1/twofold/explain", body: explainBody, show: explanation },
  },
  pareto: {
    name: "Pace and cost",
    fields: paretoFields,
    question: { path: "/v1/twofold/curve", body: curveBody, show: paretoOf },
  },
  price: {
    name: "Price",
    alone: true,
    fields: priceFields,
    question: { path: "/v1/twofold/price", body: priceBody, show: pricesOf },
  },
  plan: { name: "Plan", alone: true, fields: planFields, open: openPlan },
};

/** @type {import("../views.js").ViewModule["mount"]} */
export function mount(root, app) {
  const fields = h("form", {
    "aria-label": "Request",
    onsubmit: (/** @type {Event} */ e) => e.preventDefault(),
  });
  const result = h("div.result");
  const partNow = () => {
    const { part } = app.route.place.get().state;
    return part in PARTS ? part : "explain";
  };
  const tabs = choice("Parts", {
    get: partNow,
    set: (id) => app.route.go("explore", id === "explain" ? {} : { part: id }),
  }, Object.entries(PARTS).map(([id, { name }]) => /** @type {const} */ ([id, name])));
  const main = h("main.explore", h("h1.hidden", "Explore"), h("div.parts", tabs));
  const scroll = h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Result" }, result);
  const small = matchMedia("(max-width:820px)"),
    order = () => main.append(...small.matches ? [scroll, fields] : [fields, scroll]);
  order(); // on a small screen the result is first
  small.addEventListener("change", order);
  root.append(main);
  const form = formOf(app);
  /** Shows a part; returns what asks its question. @param {Part} part @param {string} model */
  const open = ({ question, open }, model) => {
    open?.(result, app, form);
    if (!question) return () => {};
    const { path, body, show } = question;
    return asking(
      result,
      (signal) => app.api.post(path, body(form.state(), model), { signal }),
      (found) => show(found, form),
      app.announce,
    );
  };
  let shape = "", end = () => {}, ask = () => {};
  effect(() => {
    const { view, state } = app.route.place.get(), model = app.model.get();
    if (view !== "explore") return;
    const part = PARTS[partNow()], wanted = JSON.stringify([model, part.name, state.request]);
    if (wanted !== shape || !form.wrote(state)) {
      shape = wanted;
      end();
      [ask, end] = scope(() => {
        fill(fields, part.fields(form, model));
        fill(result);
        return open(part, model);
      });
    }
    if (model || part.alone) ask();
  });
  onEnd(() => (end(), small.removeEventListener("change", order)));
}

/** The form whose values are the state of the URL. @param {import("../views.js").App} app @returns {Form} */
function formOf({ route }) {
  const state = () => route.place.peek().state;
  let written = "";
  return {
    state,
    wrote: (state) => JSON.stringify(state) === written,
    change: (more) => {
      const kept = Object.entries({ ...state(), ...more }).filter(([, value]) => value !== null);
      const next = /** @type {Record<string, string>} */ (Object.fromEntries(kept));
      written = JSON.stringify(next);
      route.replace(next);
    },
  };
}
