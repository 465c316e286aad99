// @ts-check
/** A part of the Explore view that asks the server again whenever its state changes, and shows what comes. */

import { ApiError } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { seconds } from "../core/form.js";

const PAUSE_MS = 150;

/**
 * @param {HTMLElement} root
 * @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {(found: any) => import("../core/dom.js").Child} show
 * @param {(text: string) => void} announce
 * @returns {{ask: () => void, end: () => void}} `ask` waits until nothing has changed for a moment
 */
export function asking(root, ask, show, announce) {
  let first = true;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let running = new AbortController();
  const run = async () => {
    running.abort();
    const mine = running = new AbortController();
    root.setAttribute("aria-busy", "true");
    if (!root.firstChild) fill(root, h("p", { class: "faint" }, "Calculating …"));
    try {
      const found = await ask(mine.signal);
      if (mine.signal.aborted) return;
      fill(root, show(found));
      if (!first) announce("Calculated again.");
      first = false;
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      fill(root, faultOf(error, run));
    } finally {
      if (!mine.signal.aborted) root.setAttribute("aria-busy", "false");
    }
  };
  return {
    ask: () => {
      clearTimeout(timer);
      timer = setTimeout(run, first ? 0 : PAUSE_MS);
    },
    end: () => {
      clearTimeout(timer);
      running.abort();
    },
  };
}

/** What went wrong, and a way to try again if that can help. @param {ApiError} error @param {() => void} again */
export function faultOf(error, again) {
  const later = error.status === 0 || error.status >= 429;
  return h(
    "div",
    { class: "fault", role: "alert" },
    h("p", {}, error.message, error.retryAfterS ? ` Try again in ${seconds(error.retryAfterS)}.` : ""),
    later ? h("button", { class: "chip", type: "button", onclick: again }, "Try again") : null,
  );
}
