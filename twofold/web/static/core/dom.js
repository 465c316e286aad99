// @ts-check
/**
 * Elements made of values. No string is ever parsed as markup: children are text or nodes, so that the page runs under
 * Trusted Types and needs no sanitiser.
 */

import { effect, scope } from "./signal.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(
  "svg path rect circle line polyline polygon text tspan g defs pattern clipPath title desc".split(" "),
);

/**
 * @typedef {Node | string | number | boolean | null | undefined | {get: () => unknown} | readonly any[]} Child
 * @typedef {Record<string, any>} Props
 */

/**
 * @template {string} T
 * @typedef {T extends keyof HTMLElementTagNameMap ? HTMLElementTagNameMap[T] : SVGElement} Made
 */

/**
 * Makes an element: `h("p.faint", { id: "note" }, "text")`. The tag may have classes; props may be left out.
 *
 * Props are attributes, with four exceptions: `onclick` and the like are listeners, `style` is an object of CSS
 * properties, `value`, `checked`, `disabled`, `open`, `hidden` and `scrollTop` are set as properties, and a value that
 * is a signal is followed. `true` makes an attribute empty; `false`, null and undefined leave it out. A child may be a
 * signal of text.
 *
 * @template {string} K
 * @param {K} name
 * @param {...(Props | Child)} parts
 * @returns {K extends `${infer T}.${string}` ? Made<T> : Made<K>}
 */
export function h(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length > 0) element.setAttribute("class", classes.join(" "));
  const props = isProps(parts[0]) ? parts[0] : null;
  append(element, /** @type {Child[]} */ (props ? parts.slice(1) : parts));
  for (const [name, value] of Object.entries(props ?? {})) {
    if (isSignal(value)) effect(() => setProp(element, name, value.get()));
    else setProp(element, name, value);
  }
  return /** @type {any} */ (element);
}

/** @param {any} value @returns {value is Props} */
const isProps = (value) => value?.constructor === Object && !isSignal(value);

/**
 * Sets one of an element's props, as `h` does.
 * @param {Element} element
 * @param {string} name
 * @param {any} value
 */
export function setProp(element, name, value) {
  if (name.startsWith("on")) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value) throw new TypeError(`${name} must be a function`);
  } else if (name === "style") {
    const { style } = /** @type {HTMLElement} */ (element);
    for (const [property, text] of Object.entries(value ?? {})) style.setProperty(property, String(text));
  } else if (PROPERTIES.has(name)) {
    /** @type {any} */ (element)[name] = value;
  } else if (value === false || value === null || value === undefined) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

const PROPERTIES = new Set(["value", "checked", "disabled", "open", "hidden", "scrollTop"]);

/** @param {any} value */
const isSignal = (value) => typeof value?.get === "function" && typeof value?.peek === "function";

/**
 * Adds children to a node.
 * @param {Node} parent
 * @param {Child[]} children
 */
export function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || typeof child === "boolean") continue;
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (isSignal(child)) {
      const followed = /** @type {{get: () => unknown}} */ (child), text = document.createTextNode("");
      effect(() => {
        text.data = String(followed.get() ?? "");
      });
      parent.appendChild(text);
    } else parent.appendChild(document.createTextNode(String(child)));
  }
}

/**
 * Replaces the children of a node.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Changes the text of an element, if it is another: a change costs the browser a layout. @param {Element} element @param {string} text */
export function retext(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Keeps the children of `parent` equal to a list: elements of keys that stay are moved, not made again, and effects of
 * those that go are ended.
 *
 * `make` gets the item once; what changes in an item of the same key is told by `update` of what it returns, if any.
 *
 * @template T
 * @param {Element} parent  has no other children
 * @param {(item: T) => string | number} keyOf
 * @param {(item: T) => Element | {element: Element, update: (item: T) => void}} make
 * @returns {{update: (items: readonly T[]) => void, end: () => void}}
 */
export function keyed(parent, keyOf, make) {
  /** @type {Map<string | number, {element: Element, update: (item: T) => void, end: () => void}>} */
  let shown = new Map();
  /** @param {T} item */
  const create = (item) => {
    const [made, end] = scope(() => make(item));
    return made instanceof Element ? { element: made, update: () => {}, end } : { ...made, end };
  };
  /** @param {readonly T[]} items */
  const update = (items) => {
    const next = new Map();
    for (const item of items) {
      const key = keyOf(item), old = shown.get(key);
      if (old) old.update(item);
      next.set(key, old ?? create(item));
    }
    for (const [key, old] of shown) {
      if (next.has(key)) continue;
      old.element.remove();
      old.end();
    }
    shown = next;
    let place = parent.firstChild;
    for (const { element } of shown.values()) {
      if (element === place) place = place.nextSibling;
      else parent.insertBefore(element, place);
    }
  };
  return { update, end: () => update([]) };
}
