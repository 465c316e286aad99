// @ts-check
/**
 * Markdown blocks, line by line: a line either belongs to the open block or closes it, which depends on nothing after
 * it. So a text that comes in pieces has the same blocks as the whole text.
 */

import { inline, node } from "./inline.js";

/** @typedef {import("./inline.js").MdNode} MdNode */
/**
 * @typedef {{kind: "text" | "code" | "item" | "quote" | "rule" | "heading", lines: string[], indent: number, mark: string,
 *   done: boolean}} Block
 *   `indent`: columns of an item's content; `mark`: its list mark, a fence, or a heading's; `done`: a fence was closed
 */

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,3}(?:([-+*])|(\d{1,9})[.)])(?: {1,4}|$))(.*)$/;
const QUOTE = /^ {0,3}>/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * The block that begins with a line; null for a blank one.
 * @param {string} line
 * @returns {Block | null}
 */
function begin(line) {
  const fence = FENCE.exec(line);
  if (fence) return { kind: "code", lines: [fence[2].trim()], indent: indentOf(line), mark: fence[1], done: false };
  if (line.trim() === "") return null;
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", lines: [heading[2] ?? ""], indent: 0, mark: heading[1], done: true };
  if (RULE.test(line)) return { kind: "rule", lines: [], indent: 0, mark: "", done: true };
  const item = ITEM.exec(line);
  if (item) {
    return { kind: "item", lines: [item[4]], indent: item[1].length, mark: item[2] ?? item[3], done: false };
  }
  return { kind: QUOTE.test(line) ? "quote" : "text", lines: [line], indent: 0, mark: "", done: false };
}

/**
 * Whether a line belongs to the open block.
 * @param {Block} open
 * @param {string} line
 */
function belongs(open, line) {
  if (open.done) return false;
  if (open.kind === "code") return true;
  if (open.kind === "quote") return QUOTE.test(line);
  if (open.kind === "item") {
    if (line.trim() === "") return open.lines.at(-1) !== "" || open.lines.length > 1;
    if (indentOf(line) >= Math.min(open.indent, 2)) return true;
    return open.lines.at(-1) !== "" && begin(line)?.kind === "text";
  }
  const next = begin(line);
  return next?.kind === "text" || (next?.kind === "item" && /^\d/.test(next.mark) && next.mark !== "1");
}

/**
 * Takes a line: returns the block that is open after it, which is `open` itself if the line belongs to it.
 * @param {Block | null} open
 * @param {string} line
 * @returns {Block | null}
 */
export function take(open, line) {
  if (open === null || !belongs(open, line)) return begin(line);
  if (open.kind === "code") {
    const closing = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(line);
    if (closing && closing[1].startsWith(open.mark)) open.done = true;
    else open.lines.push(outdented(line, open.indent));
  } else if (open.kind === "item") open.lines.push(outdented(line, open.indent));
  else open.lines.push(line);
  return open;
}

/** @param {Block} block @returns {Block} */
export const copy = (block) => ({ ...block, lines: [...block.lines] });

/**
 * The nodes of a block.
 * @param {Block} block
 * @param {number} [depth]
 * @returns {MdNode[]}
 */
export function nodes(block, depth = 0) {
  const { kind, lines, mark } = block;
  if (kind === "rule") return [node("hr", [])];
  if (kind === "heading") return [node("h3", inline(lines[0]), { class: `level${mark.length}` })];
  if (kind === "code") {
    const text = lines.slice(1).join("\n");
    return [node("pre", [node("code", text ? [text] : [])], { "data-language": lines[0].split(/\s/, 1)[0] })];
  }
  if (kind === "quote") return [node("blockquote", inner(lines.map((line) => line.replace(/^ {0,3}> ?/, "")), depth))];
  if (kind === "item") return [listOf(mark, [node("li", itemKids(lines, depth))])];
  return paragraph(lines);
}

/** @param {string[]} lines @param {number} depth @returns {MdNode[]} */
function itemKids(lines, depth) {
  const [first, ...rest] = lines;
  const box = /^\[([ xX])\] /.exec(first);
  const kids = inner([box ? `${box[1] === " " ? "☐" : "☑"} ${first.slice(4)}` : first, ...rest], depth);
  const only = kids[0];
  const tight = !lines.some((line, index) => line === "" && lines.slice(index).some((each) => each !== ""));
  if (tight && typeof only === "object" && only.tag === "p") return [...only.kids, ...kids.slice(1)];
  return kids;
}

/** @param {string} mark @param {MdNode[]} items @returns {MdNode} */
function listOf(mark, items) {
  const ordered = /^\d/.test(mark), start = ordered && Number(mark) !== 1 ? { start: String(Number(mark)) } : {};
  return node(ordered ? "ol" : "ul", items, /** @type {Record<string, string>} */ (start));
}

/** @param {string[]} lines @param {number} depth @returns {MdNode[]} */
function inner(lines, depth) {
  if (depth >= MAX_DEPTH) return [node("p", [lines.join("\n")])];
  /** @type {MdNode[]} */
  let found = [];
  /** @type {Block | null} */
  let open = null;
  for (const line of lines) {
    const next = take(open, line);
    if (next !== open && open) found = joined(found, nodes(open, depth + 1));
    open = next;
  }
  return open ? joined(found, nodes(open, depth + 1)) : found;
}

/**
 * Adds a block's nodes to those before it; items of the same kind make one list.
 * @param {MdNode[]} before
 * @param {MdNode[]} added
 * @returns {MdNode[]}
 */
export function joined(before, added) {
  const last = before.at(-1), [first] = added;
  const lists = typeof last === "object" && typeof first === "object" && (first.tag === "ul" || first.tag === "ol");
  if (!lists || last.tag !== first.tag) return [...before, ...added];
  return [...before.slice(0, -1), { ...last, kids: [...last.kids, ...first.kids] }, ...added.slice(1)];
}

/** A paragraph, a table, or the one and then the other. @param {string[]} lines @returns {MdNode[]} */
function paragraph(lines) {
  const at = lines.findIndex((line, index) => index > 0 && isTable(lines[index - 1], line));
  const text = (at < 0 ? lines : lines.slice(0, at - 1)).map((line) => line.trim()).join("\n");
  const before = text ? [node("p", inline(text))] : [];
  return at < 0 ? before : [...before, table(lines.slice(at - 1))];
}

/** @param {string} head @param {string} rule */
function isTable(head, rule) {
  return head.includes("|") && rule.includes("-") && DELIMITERS.test(rule) && cells(head).length === cells(rule).length;
}

/** @param {string[]} lines @returns {MdNode} */
function table([head, rule, ...rows]) {
  const sides = cells(rule).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  /** @param {string} line @param {string} tag */
  const row = (line, tag) => {
    const found = cells(line);
    return node("tr", sides.map((side, index) => node(tag, inline(found[index] ?? ""), side ? { class: side } : {})));
  };
  const body = rows.map((line) => row(line, "td"));
  return node("table", [node("thead", [row(head, "th")]), ...(body.length > 0 ? [node("tbody", body)] : [])]);
}

/** @param {string} line */
function cells(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** @param {string} line */
function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** @param {string} line @param {number} most */
function outdented(line, most) {
  return line.slice(Math.min(indentOf(line), most));
}
