// @ts-check
/** The chooser of the model. */

import { fill, h } from "../core/dom.js";
import { keptText } from "../core/parts.js";
import { effect } from "../core/signal.js";

const STATES = /** @type {Record<string, string>} */ ({ ready: "", unloaded: "not loaded", loading: "is loading" });

/**
 * A chooser, labelled `label`; `kept` keeps what the user chose.
 * @param {import("../core/signal.js").Signal<string>} model
 * @param {import("../core/signal.js").ReadSignal<any>} server
 * @param {string} [label]
 * @param {{get: () => string, set: (id: string) => void}} [kept]
 */
export function createModelPicker(model, server, label = "Model", kept = keptText("twofold.model")) {
  const choose = () => {
    kept.set(select.value);
    model.set(select.value);
  };
  const select = h("select", { onchange: choose });
  const element = h("label.pill", { hidden: true }, h("span.hidden", label), select);
  effect(() => {
    /** @type {{id: string, state: string}[]} */
    const models = server.get()?.models ?? [];
    fill(select, models.map(({ id, state }) => h("option", { value: id }, named(id, state))));
    element.hidden = models.length === 0;
    const wanted = [model.peek(), kept.get()].find((id) => models.some((each) => each.id === id));
    model.set(wanted ?? models[0]?.id ?? "");
  });
  effect(() => {
    server.get();
    select.value = model.get();
  });
  return element;
}

/** @param {string} id @param {string} state */
function named(id, state) {
  const note = STATES[state] ?? state;
  return note ? `${id} (${note})` : id;
}
