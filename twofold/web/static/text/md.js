// @ts-check
/**
 * Markdown as it comes, shown as elements. Nothing that a model writes becomes markup: the elements are made from a
 * tree of plain data with the tags below, and links are the only thing with an address.
 */

import { h } from "../core/dom.js";
import { copyButton } from "../core/parts.js";
import { copy, joined, nodes, take } from "./blocks.js";
import { rich } from "./inline.js";

/** @typedef {import("./inline.js").MdNode} MdNode */
/** @typedef {import("./blocks.js").Block} Block */

/** What a text may become. `button` copies a block of code. */
export const TAGS = "h3 p ul ol li blockquote pre code em strong del a hr table thead tbody tr th td span button div"
  .split(" ");
/** What a formula may become. */
export const MATH_TAGS =
  "math mrow mi mn mo mtext mfrac msqrt mroot msup msub msubsup mover munder munderover mtable mtr mtd".split(" ");
const MATH = "http://www.w3.org/1998/Math/MathML";

/**
 * A text in pieces as a tree of nodes.
 * @param {import("./blocks.js").Keep} [keep]  gets the parts of the text that are shown, in order; `tree` is then called once
 * @returns {{write: (piece: string) => void, tree: () => MdNode[]}}
 */
export function markdownTree(keep) {
  /** @type {MdNode[]} */
  let closed = [];
  /** @type {Block | null} */
  let open = null;
  let rest = "", end = 0;
  return {
    write: (piece) => {
      const lines = (rest + plain(piece)).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const next = take(open, line, end + line.length);
        end += line.length + 1;
        if (next !== open && open) closed = joined(closed, nodes(open, keep));
        open = next;
      }
    },
    tree: () => {
      if (rest === "" && open === null) return closed;
      const before = open && copy(open);
      const last = rest === "" ? before : take(before, rest, end + rest.length);
      const finished = before && last !== before ? joined(closed, nodes(before, keep)) : closed;
      return last ? joined(finished, nodes(last, keep)) : finished;
    },
  };
}

/** A text without the characters that Markdown lacks. @param {string} text */
export const plain = (text) => text.replaceAll("\0", "\ufffd").replaceAll("\r", "").replaceAll("\t", "    ");

/** The parts of `plain(text)` that Markdown shows, in order. @param {string} text */
export function shownParts(text) {
  const parts = /** @type {[at: number, size: number][]} */ ([]);
  const markdown = markdownTree((at, size) => parts.push([at, size]));
  markdown.write(text);
  markdown.tree();
  return parts;
}

/** The text nodes in which `root` shows those parts, without what the page adds to them. @param {Element} root */
export function shownNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = /** @type {Text[]} */ ([]);
  while (walker.nextNode()) {
    const node = /** @type {Text} */ (walker.currentNode);
    if (!node.parentElement?.closest("button, .language, .where, .box, math")) found.push(node);
  }
  return found;
}

/**
 * Shows a text in `root` as it comes: `write` takes pieces, `draw` shows what was taken so far.
 * @param {Element} root
 */
export function createMarkdown(root) {
  const text = markdownTree();
  /** @type {MdNode[]} */
  let shown = [];
  return {
    write: text.write,
    draw: () => {
      const next = text.tree();
      patch(root, shown, next);
      shown = next;
    },
  };
}

/**
 * Shows a whole text.
 * @param {Element} root
 * @param {string} text
 */
export function showMarkdown(root, text) {
  const shown = createMarkdown(root);
  shown.write(text);
  shown.draw();
}

/**
 * Changes the children of `parent` from one list of nodes to another; what is equal stays as it is.
 * @param {Element} parent
 * @param {MdNode[]} before
 * @param {MdNode[]} after
 */
function patch(parent, before, after) {
  let from = 0;
  while (from < before.length && before[from] === after[from]) from += 1;
  for (let index = from; index < after.length; index++) {
    const old = before[index], next = after[index];
    const child = parent.childNodes[index];
    if (old === next) continue;
    if (old === undefined) parent.appendChild(made(next));
    else if (typeof old === "string" && typeof next === "string") retextNode(/** @type {Text} */ (child), old, next);
    else if (same(old, next)) patch(kidsOf(/** @type {Element} */ (child)), /** @type {any} */ (old).kids, next.kids);
    else child.replaceWith(made(next));
  }
  while (parent.childNodes.length > after.length) parent.lastChild?.remove();
}

/** @param {Text} node @param {string} before @param {string} after */
function retextNode(node, before, after) {
  if (after.startsWith(before)) node.appendData(after.slice(before.length));
  else node.data = after;
}

/**
 * @param {MdNode} a
 * @param {MdNode} b
 * @returns {b is Exclude<MdNode, string>}
 */
function same(a, b) {
  if (typeof a === "string" || typeof b === "string" || a.tag !== b.tag) return false;
  return JSON.stringify(a.props) === JSON.stringify(b.props);
}

/** @param {MdNode} node @returns {Node} */
function made(node) {
  if (typeof node === "string") return document.createTextNode(node);
  if (node.tag === "math") return mathOf("math", node.props.display, rich.formula(node.props.tex));
  if (!TAGS.includes(node.tag)) throw new TypeError(`${node.tag} is no element of a text`);
  const kids = node.kids.map(made);
  if (node.tag === "pre") return framed(h("pre", { ...node.props, tabindex: 0 }, kids));
  if (node.tag === "table") return h("div.wide", { tabindex: 0 }, h("table", node.props, kids));
  return h(node.tag, node.props, kids);
}

/** Elements of a formula. @param {string} tag @param {string | undefined} display @param {MdNode[]} kids */
function mathOf(tag, display, kids) {
  const element = document.createElementNS(MATH, tag);
  if (display) element.setAttribute("display", display);
  element.append(...kids.map((each) => typeof each === "string" ? each : mathOf(each.tag, undefined, each.kids)));
  return element;
}

/** Where the children of a shown element are: blocks of code and tables have a frame. @param {Element} element */
function kidsOf(element) {
  return element.matches("div.code, div.wide") ? /** @type {Element} */ (element.firstElementChild) : element;
}

/** A block of code with its language and a button that copies it. @param {HTMLElement} block */
function framed(block) {
  const language = block.dataset.language ?? "";
  const button = copyButton(() => block.textContent ?? "", "Copy", { class: "copy" });
  return h("div.code", block, h("span.language", language), button);
}
