// @ts-check
/** Conversations kept in this browser. A browser that keeps nothing says so once, and the page works on. */

import { signal } from "../core/signal.js";

/** @typedef {import("./tree.js").Conversation} Conversation */

const KIND = "conversations";

/** The result of a request of IndexedDB, or the end of a transaction. @param {any} asked @returns {Promise<any>} */
function done(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = asked.oncomplete = () => resolve(asked.result);
    asked.onerror = asked.onabort = (/** @type {any} */ { target }) => reject(target.error);
  });
}

/** @returns {Promise<IDBDatabase>} */
async function opened() {
  const asked = indexedDB.open("twofold", 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore(KIND, { keyPath: "id" });
  const database = await done(asked);
  database.onversionchange = () => database.close();
  return database;
}

const FULL = "The browser's store is full: new messages are not kept. Export conversations and delete some.";

export function createKept() {
  const talks = signal(/** @type {Conversation[]} */ ([])), fault = signal(""), opening = opened();
  /** Uses the store, and notes what goes wrong. @param {(store: IDBObjectStore) => IDBRequest} work */
  const use = async (work) => {
    try {
      const transaction = (await opening).transaction(KIND, "readwrite"), asked = work(transaction.objectStore(KIND));
      await done(transaction);
      fault.set("");
      return asked.result;
    } catch (error) {
      const full = error instanceof DOMException && error.name === "QuotaExceededError";
      fault.set(full ? FULL : "This browser does not keep conversations.");
    }
  };
  /** @param {Conversation[]} list */
  const show = (list) => talks.set(list.sort((a, b) => b.updated - a.updated));
  const others = (/** @type {string} */ id) => talks.peek().filter((each) => each.id !== id);
  return {
    talks,
    fault,
    load: async () => show(await use((store) => store.getAll()) ?? talks.peek()),
    /** @param {Conversation} talk */
    save: (talk) => {
      show([talk, ...others(talk.id)]);
      return use((store) => store.put(talk));
    },
    /** @param {string} id */
    remove: (id) => {
      show(others(id));
      return use((store) => store.delete(id));
    },
    clear: () => {
      show([]);
      return use((store) => store.clear());
    },
  };
}
