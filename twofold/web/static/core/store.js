// @ts-check
/** Objects kept in the browser (IndexedDB), each with its key in the field `id`. */

/**
 * @typedef {object} Store
 * @property {<T = any>(kind: string) => Promise<T[]>} all
 * @property {(kind: string, object: {id: string}) => Promise<void>} put
 * @property {(kind: string, id: string) => Promise<void>} remove
 * @property {(kind: string) => Promise<void>} clear
 */

/**
 * Opens a database. Rejects with the browser's DOMException if it keeps nothing or its space is used up.
 * @param {string} name
 * @param {number} version  raised when `kinds` gets a new one
 * @param {readonly string[]} kinds
 * @returns {Promise<Store>}
 */
export async function openStore(name, version, kinds) {
  const asked = indexedDB.open(name, version);
  asked.onupgradeneeded = () => {
    for (const kind of kinds) {
      if (!asked.result.objectStoreNames.contains(kind)) asked.result.createObjectStore(kind, { keyPath: "id" });
    }
  };
  const database = await result(asked);
  database.onversionchange = () => database.close();
  /** @param {string} kind @param {(objects: IDBObjectStore) => void} change */
  const write = (kind, change) => {
    const transaction = database.transaction(kind, "readwrite");
    change(transaction.objectStore(kind));
    return done(transaction);
  };
  return {
    all: (kind) => result(database.transaction(kind).objectStore(kind).getAll()),
    put: (kind, object) => write(kind, (objects) => objects.put(object)),
    remove: (kind, id) => write(kind, (objects) => objects.delete(id)),
    clear: (kind) => write(kind, (objects) => objects.clear()),
  };
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * @param {IDBTransaction} transaction
 * @returns {Promise<void>}
 */
function done(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}
