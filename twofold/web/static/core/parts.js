// @ts-check
/** Parts that views share: buttons, choices, dialogs with a form, files to save, and what went wrong. */

import { h, retext } from "./dom.js";
import { effect, onEnd } from "./signal.js";

/** @typedef {import("./dom.js").Child} Child */

/** @param {Child} text @param {() => void} onclick @param {import("./dom.js").Props} [more] */
export const button = (text, onclick, more = {}) =>
  h("button", { type: "button", class: "chip", onclick, ...more }, text);

/** A button that copies a text. @param {() => string} text @param {string} name @param {import("./dom.js").Props} [more] */
export function copyButton(text, name, more) {
  const made = button(name, async () => {
    await navigator.clipboard.writeText(text());
    made.textContent = "Copied";
    setTimeout(() => made.textContent = name, 1500);
  }, more);
  return made;
}

/** A picture that is stretched to its place. @param {string} kind @param {number} width @param {number} height @param {...Child} shapes */
export const strip = (kind, width, height, ...shapes) =>
  h(
    "svg",
    { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    shapes,
  );

/** A place for what went wrong; an empty text hides it. @param {string} [role] */
export function faultLine(role = "alert") {
  const element = h("p.fault", { role, hidden: true });
  /** @param {string} text */
  const say = (text) => {
    element.hidden = !text;
    retext(element, text);
  };
  return { element, say };
}

/**
 * What went wrong, and what can be done: a button tries again where that can help, once the time has come, and the text
 * counts down with it.
 * @param {{message: string, status: number, retryAt: number | null}} fault  `retryAt`: Unix seconds
 * @param {() => void} again @param {...Child} more
 */
export function faultBox({ message, status, retryAt }, again, ...more) {
  const said = h("p", message), retry = button("Try again", again);
  const helps = [0, 401, 403].includes(status) || status >= 429;
  const element = h("div.fault", { role: "alert" }, said, h("p.row", helps && retry, more));
  const tick = () => {
    const left = Math.ceil((retryAt ?? 0) - Date.now() / 1000);
    retry.disabled = left > 0;
    retext(retry, left > 0 ? `Try again in ${left} s` : "Try again");
    retext(said, message.replace(/\bagain in [\d.]+ s\b/, left > 0 ? `again in ${left} s` : "again now"));
    if (left > 0) setTimeout(tick, 500);
  };
  if (retryAt !== null) tick();
  setTimeout(() => element.setAttribute("aria-live", "off"), 1000); // it is said once, not each second
  return element;
}

/**
 * Buttons of which one is pressed.
 * @template T
 * @param {string} label
 * @param {{get: () => T, set: (value: T) => void}} value  a signal, or what follows one
 * @param {readonly (readonly [T, string, string?])[]} choices  with words of each, and what it means
 */
export function choice(label, value, choices) {
  const buttons = choices.map(([id, text, title]) => button(text, () => value.set(id), { class: null, title }));
  effect(() =>
    buttons.forEach((each, index) => each.setAttribute("aria-pressed", String(value.get() === choices[index][0])))
  );
  return h("span.seg", { role: "group", "aria-label": label }, buttons);
}

/**
 * A dialog with a form; `apply` may throw an Error, which is shown, else the dialog is closed.
 * @param {string} id
 * @param {string} title
 * @param {Child[]} parts
 * @param {() => void} apply
 */
export function formDialog(id, title, parts, apply) {
  const wrong = faultLine();
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    try {
      apply();
      dialog.close();
    } catch (error) {
      wrong.say(/** @type {Error} */ (error).message);
    }
  };
  const dialog = h(
    "dialog",
    { class: `dialog ${id}-dialog`, "aria-labelledby": `${id}-title` },
    h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: `${id}-title` }, title),
      parts,
      wrong.element,
      h(
        "div.row.end",
        button("Cancel", () => dialog.close()),
        h("button", { type: "submit", class: "send" }, "Apply"),
      ),
    ),
  );
  return { dialog, say: wrong.say };
}

/** A menu: it closes after a click on one of its buttons, a click elsewhere, and Esc. @param {string} name @param {...Child} items */
export function menu(name, ...items) {
  const summary = h("summary.chip", { "aria-label": name, title: name }, "⋯");
  const close = () => (element.open = false);
  const element = h(
    "details.menu",
    {
      onclick: (/** @type {any} */ event) => event.target.closest(".items button") && close(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape" && element.open) (event.stopPropagation(), close(), summary.focus());
      },
      onfocusout: (/** @type {any} */ { relatedTarget: to }) => to && !element.contains(to) && close(),
    },
    summary,
    h("div.items", items),
  );
  const elsewhere = (/** @type {any} */ { target }) => element.contains(target) || close();
  addEventListener("pointerdown", elsewhere);
  onEnd(() => removeEventListener("pointerdown", elsewhere));
  return element;
}

/** A hidden chooser of files. @param {import("./dom.js").Props} props @param {(files: File[]) => void} take */
export function filePicker(props, take) {
  const picker = h("input", {
    ...{ type: "file", hidden: true, tabindex: -1, ...props },
    onchange: () => {
      const files = [...picker.files ?? []];
      picker.value = ""; // so that the same file can be chosen again
      take(files);
    },
  });
  return picker;
}

/** Saves a text as a file. @param {string} text @param {string} name @param {string} type */
export function download(text, name, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * A text that the browser keeps, "" for none; a browser that keeps nothing forgets it when the page is reloaded.
 * @param {string} name
 * @param {boolean} [tab]  until the tab is closed
 */
export function keptText(name, tab = false) {
  const place = () => tab ? sessionStorage : localStorage;
  return {
    get: () => {
      try {
        return place().getItem(name) ?? "";
      } catch {
        return "";
      }
    },
    /** @param {string} text */
    set: (text) => {
      try {
        if (text) place().setItem(name, text);
        else place().removeItem(name);
      } catch {
        // said above
      }
    },
  };
}

/**
 * What a file of ours holds, with this list in it. Throws an Error for any other file.
 * @param {string} text @param {string} schema @param {string} list @param {string} fault
 * @returns {any}
 */
export function documentIn(text, schema, list, fault) {
  try {
    const found = JSON.parse(text);
    if (found.schema === schema && Array.isArray(found[list])) return found;
  } catch {
    // it is none either
  }
  throw new Error(`${fault} (${schema}).`);
}
