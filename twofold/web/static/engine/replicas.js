// @ts-check
/** The replicas of the chosen model, which the server shows to administrators: there if it has several, or a node. */

import { sleep } from "../core/clock.js";
import { fill, h } from "../core/dom.js";
import { count, seconds } from "../core/form.js";
import { effect } from "../core/signal.js";
import { table, wide } from "../draw/table.js";

const EVERY_S = 2;
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
  const place = wide("Table of replicas"), router = h("span.faint");
  const element = h(
    "section.panel",
    { "aria-label": "Replicas", hidden: true },
    h("h2", "Replicas", router),
    place,
  );
  const read = async (/** @type {AbortSignal} */ signal) => {
    const told = await app.api.get("/v1/twofold/server", { signal }).catch(() => null);
    if (!told || signal.aborted) return;
    const { fleet } = told.models?.find((/** @type {any} */ each) => each.id === app.model.peek()) ?? {};
    element.hidden = !fleet?.replicas.some((/** @type {any} */ { node }, /** @type {number} */ at) => at > 0 || node);
    if (element.hidden) return;
    fill(place, table("Replicas", HEAD, fleet.replicas.map(row)));
    fill(router, `router ${fleet.router}, ${count(fleet.waiting)} wait for a replica`);
  };
  const follow = async (/** @type {AbortSignal} */ signal) => {
    do {
      if (!document.hidden) await read(signal);
      if (!element.hidden) await sleep(EVERY_S, signal);
    } while (!element.hidden && !signal.aborted);
  };
  effect(() => {
    for (const each of [app.model, app.api.key]) each.get();
    const stop = new AbortController();
    follow(stop.signal);
    return () => stop.abort();
  });
  return element;
}
