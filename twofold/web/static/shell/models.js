// @ts-check
/** The chooser of the model. */

import { fill, h } from "../core/dom.js";
import { keptText } from "../core/parts.js";
import { effect } from "../core/signal.js";

const STATES = /** @type {Record<string, string>} */ ({ ready: "", unloaded: "not loaded", loading: "is loading" });

/**
 * @param {import("../core/signal.js").Signal<string>} model
 * @param {import("../core/signal.js").ReadSignal<any>} server
 */
export function createModelPicker(model, server) {
  const kept = keptText("twofold.model");
  const select = h("select", { id: "model", onchange: () => choose(select.value) });
  const element = h("label", { class: "pill", hidden: true }, h("span", { class: "hidden" }, "Model"), select);
  /** @param {string} id */
  function choose(id) {
    kept.set(id);
    model.set(id);
  }
  effect(() => {
    /** @type {{id: string, state: string}[]} */
    const models = server.get()?.models ?? [];
    fill(select, models.map(({ id, state }) => h("option", { value: id }, named(id, state))));
    element.hidden = models.length === 0;
    const wanted = [model.peek(), kept.get()].find((id) => models.some((each) => each.id === id));
    model.set(wanted ?? models[0]?.id ?? "");
    select.value = model.peek();
  });
  effect(() => {
    select.value = model.get();
  });
  return element;
}

/** @param {string} id @param {string} state */
function named(id, state) {
  const note = STATES[state] ?? state;
  return note ? `${id} (${note})` : id;
}
