// @ts-check
/**
 * The views of the page, in the order of their tabs. The first one comes with the shell, another is loaded when it is
 * first opened.
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
 * @typedef {{mount: (root: HTMLElement, app: App) => void}} ViewModule  `mount` runs in a scope, which ends with the view
 * @typedef {{id: string, name: string, load: () => Promise<ViewModule>}} View
 */

import { mount } from "./chat/view.js";

/** @type {readonly View[]} */
export const VIEWS = [
  { id: "chat", name: "Chat", load: () => Promise.resolve({ mount }) },
  { id: "compare", name: "Compare", load: () => import("./compare/view.js") },
  { id: "engine", name: "Engine", load: () => import("./engine/view.js") },
  { id: "explore", name: "Explore", load: () => import("./explore/view.js") },
  { id: "bench", name: "Bench", load: () => import("./bench/view.js") },
];
