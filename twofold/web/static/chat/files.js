// @ts-check
/** Files that go with a message, as text. */

import { fill, h } from "../core/dom.js";
import { bytes } from "../core/form.js";
import { button, faultLine, filePicker } from "../core/parts.js";
import { effect, signal } from "../core/signal.js";

/** @typedef {{name: string, text: string}} Attached */

const MAX_FILE = 2 ** 20;

/** @param {File} file @returns {Promise<Attached>} */
async function read(file) {
  if (file.size > MAX_FILE) throw new Error(`${file.name} has ${bytes(file.size)}; at most ${bytes(MAX_FILE)} fit.`);
  const data = await file.arrayBuffer();
  try {
    return { name: file.name, text: new TextDecoder("utf-8", { fatal: true }).decode(data) };
  } catch {
    throw new Error(`${file.name} is not text.`);
  }
}

/** @param {() => void} changed */
export function createFiles(changed) {
  const files = signal(/** @type {Attached[]} */ ([]));
  const wrong = faultLine();
  const attached = h("div.chips");
  const picker = filePicker({ multiple: true }, attach);
  let made = false;
  effect(() => {
    const remove = (/** @type {Attached} */ file) => files.set(files.peek().filter((each) => each !== file));
    fill(
      attached,
      files.get().map((file) => button(`${file.name} ✕`, () => remove(file), { "aria-label": `Remove ${file.name}` })),
    );
    if (made) changed();
  });
  made = true;
  /** @param {File[]} list */
  async function attach(list) {
    const done = await Promise.allSettled(list.map(read));
    files.set([...files.peek(), ...done.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []))]);
    const faults = done.flatMap((each) => (each.status === "rejected" ? [each.reason.message] : []));
    wrong.say(faults.join(" "));
  }
  return {
    attached,
    wrong: wrong.element,
    picker,
    attach,
    list: files.peek,
    set: files.set,
    /** A message with the files. @param {string} content */
    with: (content) => {
      const texts = files.peek().map(({ name, text }) => `${name}:\n\`\`\`\n${text}\n\`\`\``);
      return [content, ...texts].filter(Boolean).join("\n\n");
    },
  };
}
