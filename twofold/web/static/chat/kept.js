// @ts-check
/** Conversations kept in this browser. A browser that keeps nothing says so once, and the page works on. */

import { signal } from "../core/signal.js";
import { openStore } from "../core/store.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const KIND = "conversations";

export function createKept() {
  const talks = signal(/** @type {Conversation[]} */ ([]));
  const fault = signal("");
  const opening = openStore("twofold", 1, [KIND]);
  /** Does something with the store, and notes what goes wrong. @param {(store: import("../core/store.js").Store) => Promise<void>} work */
  const guarded = async (work) => {
    try {
      await work(await opening);
      fault.set("");
    } catch (error) {
      const full = error instanceof DOMException && error.name === "QuotaExceededError";
      fault.set(
        full
          ? "The browser's store is full: new messages are not kept. Export conversations and delete some."
          : "This browser does not keep conversations.",
      );
    }
  };
  /** @param {Conversation[]} list */
  const show = (list) => talks.set(list.sort((a, b) => b.updated - a.updated));
  const kept = {
    talks,
    fault,
    load: () => guarded(async (store) => show(await store.all(KIND))),
    /** @param {Conversation} talk */
    save: (talk) => {
      show([talk, ...talks.peek().filter((each) => each.id !== talk.id)]);
      return guarded((store) => store.put(KIND, talk));
    },
    /** @param {string} id */
    remove: (id) => {
      show(talks.peek().filter((each) => each.id !== id));
      return guarded((store) => store.remove(KIND, id));
    },
    clear: () => {
      show([]);
      return guarded((store) => store.clear(KIND));
    },
  };
  return kept;
}
