// @ts-check
/** The replicas of the chosen model, which the server shows to administrators: there if it has several, or a node. */

import { fill, h } from "../core/dom.js";
import { count, seconds } from "../core/form.js";
import { effect } from "../core/signal.js";
import { table, wide } from "../draw/table.js";

const EVERY_MS = 2000;
const HEAD = ["replica", "where", "state", "requests", "waiting", "last step", "restarts"];

/** @param {any} replica */
const row = ({ number, node, pid, state, error, requests, waiting, step_s, restarts }) => [
  number,
  node ?? (pid ? `process ${pid}` : "–"),
  error ? `${state}: ${error}` : state,
  ...[requests, waiting].map(count),
  seconds(step_s),
  count(restarts),
];

/** Reads them while the tab is seen, again and again if there are several. @param {import("../views.js").App} app */
export function createReplicas(app) {
  const place = wide("Table of replicas");
  const router = h("span", { class: "faint" });
  const element = h(
    "section",
    { class: "panel", "aria-label": "Replicas", hidden: true },
    h("h2", {}, "Replicas", router),
    place,
  );
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let stop = new AbortController();
  const read = async (/** @type {AbortSignal} */ abort) => {
    if (!document.hidden) {
      const told = await app.api.get("/v1/twofold/server", { signal: abort }).catch(() => null);
      if (abort.aborted) return;
      const fleet = told?.models?.find((/** @type {any} */ each) => each.id === app.model.peek())?.fleet;
      if (told) {
        element.hidden = !fleet?.replicas.some((/** @type {any} */ each, /** @type {number} */ at) => at || each.node);
      }
      if (!element.hidden && fleet) {
        fill(place, table("Replicas", HEAD, fleet.replicas.map(row)));
        fill(router, `router ${fleet.router}, ${count(fleet.waiting)} wait for a replica`);
      }
    }
    if (!element.hidden) timer = setTimeout(read, EVERY_MS, abort);
  };
  const end = () => (stop.abort(), clearTimeout(timer));
  effect(() => {
    for (const each of [app.model, app.api.key]) each.get();
    end();
    stop = new AbortController();
    read(stop.signal);
  });
  return { element, end };
}
