// @ts-check
/**
 * The view and its state, kept in the fragment of the URL: `#/explore?model=llama-3-8b&batch=16`. A fragment is never
 * sent to a server.
 */

import { signal } from "./signal.js";

/**
 * @typedef {{view: string, state: Record<string, string>}} Place
 * @typedef {{place: import("./signal.js").ReadSignal<Place>, go: (view: string, state?: Record<string, string>) => void,
 *   replace: (state: Record<string, string>) => void, href: (view: string, state?: Record<string, string>) => string}} Route
 *   `go` makes an entry in the history, `replace` none.
 */

/**
 * @param {string} hash  a fragment with its `#`
 * @param {string} first  the view of an empty fragment
 * @returns {Place}
 */
export function parsePlace(hash, first) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || first, state: Object.fromEntries(new URLSearchParams(query)) };
}

/**
 * @param {string} view
 * @param {Record<string, string>} [state]
 */
export function formatPlace(view, state = {}) {
  const query = new URLSearchParams(state).toString();
  return `#/${view}${query && `?${query}`}`;
}

/**
 * @param {readonly string[]} views  names of the views; the first one is that of an unknown fragment
 * @returns {Route}
 */
export function createRoute(views) {
  const read = () => {
    const place = parsePlace(location.hash, views[0]);
    return views.includes(place.view) ? place : { view: views[0], state: {} };
  };
  const place = signal(read());
  addEventListener("hashchange", () => place.set(read()));
  return {
    place,
    href: formatPlace,
    go: (view, state) => {
      location.hash = formatPlace(view, state);
    },
    replace: (state) => {
      history.replaceState(null, "", formatPlace(place.peek().view, state));
      place.set(read());
    },
  };
}
