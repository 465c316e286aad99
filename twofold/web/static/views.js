// @ts-check
/**
 * The views of the page, in the order of their tabs. The first one comes with the shell, the others when the browser has
 * nothing else to do, or when they are opened.
 *
 * @typedef {object} App
 * @property {import("./core/api.js").Api} api
 * @property {import("./core/signal.js").Signal<any>} server  the JSON of GET /v1/twofold/server, or null
 * @property {import("./core/signal.js").Signal<string>} model  id of the chosen model, "" before it is known
 * @property {import("./core/signal.js").ReadSignal<"light" | "dark">} theme
 * @property {(text: string) => void} announce  says a sentence to screen readers
 * @property {import("./core/route.js").Route} route
 * @property {(message?: string) => void} askKey  opens the dialog for the key, with what was wrong
 * @property {() => Promise<void>} refresh  reads the server and its models again
 *
 * @property {(id: string) => Promise<any>} load  the module of a view
 *
 * @typedef {{mount: (root: HTMLElement, app: App) => void}} ViewModule  `mount` runs in a scope, which ends with the view
 * @typedef {{id: string, name: string, load: (again: string) => Promise<ViewModule>}} View
 *   `again`: "", or a query, as browsers keep a module that could not be fetched
 */

import { mount } from "./chat/view.js";
import { whenSeen } from "./core/clock.js";

/** @type {readonly View[]} */
export const VIEWS = [
  { id: "chat", name: "Chat", load: () => Promise.resolve({ mount }) },
  { id: "compare", name: "Compare", load: (again) => import("./compare/view.js" + again) },
  { id: "engine", name: "Engine", load: (again) => import("./engine/view.js" + again) },
  { id: "explore", name: "Explore", load: (again) => import("./explore/view.js" + again) },
  { id: "bench", name: "Bench", load: (again) => import("./bench/view.js" + again) },
];

/** @type {View} */
const RICH = { id: "text", name: "", load: (again) => import("./text/rich.js" + again) };
/** @type {Map<string, Promise<ViewModule>>} */
const loaded = new Map();
let tries = 0;

/** The module of a view. What failed is tried again with the next call. @param {string} id @returns {Promise<any>} */
export function load(id) {
  const view = VIEWS.find((each) => each.id === id) ?? RICH;
  const found = loaded.get(id) ?? view.load(tries ? `?${tries}` : "").catch((error) => {
    loaded.delete(id);
    tries += 1;
    throw error;
  });
  loaded.set(id, found);
  return found;
}

/** Loads what makes answers richer, then all views, one after another, while the browser has nothing else to do. */
export function loadAll() {
  load(RICH.id).then(({ mount }) => mount(), () => {});
  const idle = globalThis.requestIdleCallback ?? ((/** @type {() => void} */ run) => setTimeout(run, 1000));
  const rest = VIEWS.map((view) => view.id);
  const next = () => {
    const id = rest.shift();
    if (id) load(id).then(() => idle(() => whenSeen(next)), () => {}); // it is tried again when it is opened
  };
  idle(next);
}
