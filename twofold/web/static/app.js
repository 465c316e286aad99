// @ts-check
/** The shell: the bar, the tabs, the chosen model, the theme, the key, and the view. */

import { ApiError, createApi } from "./core/api.js";
import { whenSeen } from "./core/clock.js";
import { fill, h } from "./core/dom.js";
import { timeIn } from "./core/form.js";
import { faultBox, faultLine } from "./core/parts.js";
import { createRoute } from "./core/route.js";
import { effect, scope, signal } from "./core/signal.js";
import { createKeyDialog } from "./shell/key.js";
import { createModelPicker } from "./shell/models.js";
import { createTheme } from "./shell/theme.js";
import { load, loadAll, VIEWS } from "./views.js";

/** @typedef {import("./views.js").App} App */

const api = createApi();
const route = createRoute(VIEWS.map((view) => view.id));
const theme = createTheme();
const server = signal(/** @type {any} */ (null));
const model = signal("");
const said = h("p.hidden", { role: "status" });
const keys = createKeyDialog(api, () => app.refresh());
const picker = createModelPicker(model, server);
const trouble = faultLine();
/** Seconds until the server is asked again: while it does not answer or loads the model, and while this is unloaded. */
const RETRY_S = 2, UNLOADED_S = 10;
/** What is tried again once the server answers. @type {(() => void) | null} */
let failed = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let retry;

/** @type {App} */
const app = {
  api,
  server,
  model,
  theme: theme.value,
  route,
  announce: (text) => fill(said, text),
  askKey: keys.open,
  load,
  refresh: async () => {
    clearTimeout(retry);
    try {
      const told = await api.get("/v1/twofold/server");
      server.set(told.models ? told : null);
      keys.wanted(told.keyed, !told.models);
      trouble.say("");
      failed?.();
      follow(told.models ?? []);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.refused) return keys.open(error.message);
      const waitS = error.retryAfterS || RETRY_S;
      trouble.say(`${error.message} The next try is at ${timeIn(waitS)}.`);
      retry = setTimeout(again, 1e3 * waitS);
    }
  },
};

/** Asks again while the chosen model changes its state by itself. @param {{id: string, state: string}[]} models */
function follow(models) {
  const state = models.find((each) => each.id === model.peek())?.state;
  if (state === "loading" || state === "unloaded") {
    retry = setTimeout(again, 1e3 * (state === "loading" ? RETRY_S : UNLOADED_S));
  }
}

/** Reads the server again, once the tab is seen. */
const again = () => whenSeen(app.refresh);

function brand() {
  return h(
    "a.brand",
    { href: route.href(VIEWS[0].id), "aria-label": "Twofold, home" },
    h(
      "svg",
      { width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true" },
      h("path.f-prefill", { d: "M2 3h7v8H2z" }),
      h("path.f-decode", { d: "M10.5 11h2v8h-2zM14 11h2v6h-2zM17.5 11h2v8h-2z" }),
      h("path.f-ink", { d: "M2 10.4h18v1.2H2z" }),
    ),
    h("span", "Twofold"),
  );
}

/** @param {string} name @param {string} label */
function tabs(name, label) {
  const links = VIEWS.map((view) => {
    const link = h("a", { href: route.href(view.id) }, view.name);
    effect(() => {
      if (route.place.get().view === view.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    return link;
  });
  return h("nav", { class: name, "aria-label": label }, links);
}

/** Shows the view of the route; the one before is unmounted when the next is loaded. */
function viewOfRoute() {
  const root = h("div.view", { id: "view" });
  let shown = "";
  let leave = () => {};
  effect(() => {
    const { view } = route.place.get();
    if (view === shown) return;
    shown = view;
    open(view);
  });
  /** @param {string} id @param {boolean} [again] */
  async function open(id, again = false) {
    const view = /** @type {import("./views.js").View} */ (VIEWS.find((each) => each.id === id));
    document.title = `${view.name} · Twofold`;
    failed = null;
    /** @type {import("./views.js").ViewModule | null} */
    const module = await load(id).catch(() => null);
    if (shown !== id) return;
    if (!module) failed = () => open(id, true);
    if (!module && again) return;
    leave();
    leave = () => {};
    fill(root);
    if (module) return void ([, leave] = scope(() => module.mount(root, app)));
    fill(root, failureOf(view.name, () => open(id)));
    app.refresh();
  }
  return root;
}

/** @param {string} name  of a view @param {() => void} again */
function failureOf(name, again) {
  const message = `${name} cannot be shown: its script could not be fetched. ` +
    "If the server runs, reload the page.";
  const box = faultBox({ message, status: 0, retryAt: null }, again);
  return h("main.failure", h("h1.hidden", name), box);
}

function start() {
  const bar = h(
    "header.bar",
    brand(),
    VIEWS.length > 1 ? tabs("tabs", "Views") : null,
    h("div.spring"),
    picker,
    keys.button,
    theme.button,
  );
  document.body.append(
    h("a.skip", { href: "#view", onclick: skip }, "Skip to the content"),
    bar,
    trouble.element,
    viewOfRoute(),
    ...(VIEWS.length > 1 ? [tabs("bottom", "Views, small screens")] : []),
    said,
    keys.dialog,
  );
  // A dropped file is for the view, not for the browser to open.
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  app.refresh().then(loadAll);
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  const target = document.querySelector("#view textarea, #view [tabindex], #view a, #view button");
  if (target instanceof HTMLElement) target.focus();
}

start();
