// @ts-check
/**
 * Markdown blocks, line by line: a line either belongs to the open block or closes it, which depends on nothing after
 * it. So a text that comes in pieces has the same blocks as the whole text.
 */

import { inline, node, rich } from "./inline.js";

/** @typedef {import("./inline.js").MdNode} MdNode */
/**
 * @typedef {{kind: "text" | "code" | "math" | "item" | "quote" | "rule" | "heading", lines: string[], ends: number[],
 *   indent: number, mark: string, done: boolean}} Block
 *   math: lines of a formula, which would begin other blocks; `ends`: where each of its lines ends in the text; `indent`: columns of an item's content; `mark`: its list mark, a
 *   fence, a heading's, or what closes a formula; `done`: it was closed
 * @typedef {{text: string, at: number}} Part  of a line, with its place in the text
 * @typedef {(at: number, size: number) => void} Keep  gets the shown parts of the text, in order
 */

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/d;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,3}(?:([-+*])|(\d{1,9})[.)])(?: {1,4}|$))(.*)$/;
const QUOTE = /^ {0,3}>/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * The block that begins with a line; null for a blank one.
 * @param {string} line
 * @param {number} end  of the line in the text
 * @returns {Block | null}
 */
function begin(line, end) {
  /** @param {Block["kind"]} kind @param {string} first @param {number} indent @param {string} mark @param {boolean} done */
  const block = (kind, first, indent = 0, mark = "", done = false) => ({
    ...{ kind, lines: [first], ends: [end], indent, mark, done },
  });
  const fence = FENCE.exec(line);
  if (fence) return block("code", fence[2].trim(), indentOf(line), fence[1]);
  if (line.trim() === "") return null;
  const heading = HEADING.exec(line);
  if (heading) {
    end += (heading.indices?.[2]?.[1] ?? 0) - line.length;
    return block("heading", heading[2] ?? "", 0, heading[1], true);
  }
  const closing = line.startsWith("$$") ? "$$" : line.startsWith("\\[") ? "\\]" : "";
  if (closing && !line.includes(closing, 2)) return block("math", line, 0, closing);
  if (RULE.test(line)) return block("rule", "", 0, "", true);
  const item = ITEM.exec(line);
  if (item) return block("item", item[4], item[1].length, item[2] ?? item[3]);
  return block(QUOTE.test(line) ? "quote" : "text", line);
}

/**
 * Whether a line belongs to the open block.
 * @param {Block} open
 * @param {string} line
 */
function belongs(open, line) {
  if (open.done) return false;
  if (open.kind === "code") return true;
  if (open.kind === "math") return line.trim() !== "";
  if (open.kind === "quote") return QUOTE.test(line);
  if (open.kind === "item") {
    if (line.trim() === "") return open.lines.at(-1) !== "" || open.lines.length > 1;
    if (indentOf(line) >= Math.min(open.indent, 2)) return true;
    return open.lines.at(-1) !== "" && begin(line, 0)?.kind === "text";
  }
  const next = begin(line, 0);
  return next?.kind === "text" || (next?.kind === "item" && /^\d/.test(next.mark) && next.mark !== "1");
}

/**
 * Takes a line: returns the block that is open after it, which is `open` itself if the line belongs to it.
 * @param {Block | null} open
 * @param {string} line
 * @param {number} end  of the line in the text
 * @returns {Block | null}
 */
export function take(open, line, end) {
  if (open === null || !belongs(open, line)) return begin(line, end);
  if (open.kind === "code") {
    const closing = /^ {0,3}(`{3,}|~{3,})\s*$/.exec(line);
    if (closing && closing[1].startsWith(open.mark)) {
      open.done = true;
      return open;
    }
  }
  if (open.kind === "math") open.done = line.includes(open.mark);
  open.lines.push(outdented(line, open.indent));
  open.ends.push(end);
  return open;
}

/** @param {Block} block @returns {Block} */
export const copy = (block) => ({ ...block, lines: [...block.lines], ends: [...block.ends] });

/**
 * The nodes of a block.
 * @param {Block} block
 * @param {Keep} [keep]
 * @param {number} [depth]
 * @returns {MdNode[]}
 */
export function nodes(block, keep, depth = 0) {
  const { kind, lines, ends, mark } = block;
  if (kind === "rule") return [node("hr", [])];
  const parts = lines.map((line, index) => ({ text: line, at: ends[index] - line.length }));
  if (kind === "heading") return [node("h3", shown(parts, "\n", keep), { class: `level${mark.length}` })];
  if (kind === "code") {
    const text = verbatim(parts.slice(1), keep);
    const language = lines[0].split(/\s/, 1)[0];
    return [node("pre", [node("code", text ? rich.coloured(text, language) : [])], { "data-language": language })];
  }
  if (kind === "quote") {
    const inside = lines.map((line) => line.replace(/^ {0,3}> ?/, ""));
    return [node("blockquote", inner(inside, ends, depth, keep))];
  }
  if (kind === "item") return [listOf(mark, [node("li", itemKids(lines, ends, depth, keep))])];
  return paragraph(parts, keep);
}

/** Lines as they are. @param {Part[]} parts @param {Keep} [keep] */
function verbatim(parts, keep) {
  parts.forEach(({ text, at }, index) => keep?.(at, text.length + (index < parts.length - 1 ? 1 : 0)));
  return parts.map(({ text }) => text).join("\n");
}

/**
 * The nodes of parts that are one text, with `joint` between them, which has one character here and at least one there.
 * @param {Part[]} parts @param {string} joint @param {Keep} [keep]
 */
function shown(parts, joint, keep) {
  const text = parts.map((part) => part.text).join(joint);
  if (!keep) return inline(text);
  let part = 0, start = 0;
  return inline(text, (from, to) => {
    while (from < to) {
      const own = parts[part], end = start + own.text.length + 1;
      if (from >= end) {
        part += 1;
        start = end;
        continue;
      }
      keep(own.at + from - start, Math.min(to, end) - from);
      from = Math.min(to, end);
    }
  });
}

/** @param {string[]} lines @param {number[]} ends @param {number} depth @param {Keep} [keep] @returns {MdNode[]} */
function itemKids(lines, ends, depth, keep) {
  const [first, ...rest] = lines;
  const box = /^\[([ xX])\] /.exec(first);
  const kids = inner([box ? first.slice(4) : first, ...rest], ends, depth, keep);
  const only = kids[0];
  const tight = !lines.some((line, index) => line === "" && lines.slice(index).some((each) => each !== ""));
  const open = tight && typeof only === "object" && only.tag === "p" ? [...only.kids, ...kids.slice(1)] : kids;
  return box ? [node("span", [box[1] === " " ? "☐ " : "☑ "], { class: "box" }), ...open] : open;
}

/** @param {string} mark @param {MdNode[]} items @returns {MdNode} */
function listOf(mark, items) {
  const ordered = /^\d/.test(mark), start = ordered && Number(mark) !== 1 ? { start: String(Number(mark)) } : {};
  return node(ordered ? "ol" : "ul", items, /** @type {Record<string, string>} */ (start));
}

/** @param {string[]} lines @param {number[]} ends @param {number} depth @param {Keep} [keep] @returns {MdNode[]} */
function inner(lines, ends, depth, keep) {
  if (depth >= MAX_DEPTH) {
    return [node("p", [verbatim(lines.map((text, index) => ({ text, at: ends[index] - text.length })), keep)])];
  }
  /** @type {MdNode[]} */
  let found = [];
  /** @type {Block | null} */
  let open = null;
  lines.forEach((line, index) => {
    const next = take(open, line, ends[index]);
    if (next !== open && open) found = joined(found, nodes(open, keep, depth + 1));
    open = next;
  });
  return open ? joined(found, nodes(open, keep, depth + 1)) : found;
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

/** Without spaces at its ends. @param {Part} part @returns {Part} */
const trimmed = ({ text, at }) => ({ text: text.trim(), at: at + indentOf(text) });

/** A paragraph, a table, or the one and then the other. @param {Part[]} lines @param {Keep} [keep] @returns {MdNode[]} */
function paragraph(lines, keep) {
  const at = lines.findIndex(({ text }, index) => index > 0 && isTable(lines[index - 1].text, text));
  const text = (at < 0 ? lines : lines.slice(0, at - 1)).map(trimmed);
  const before = text.some((part) => part.text) ? [node("p", shown(text, "\n", keep))] : [];
  return at < 0 ? before : [...before, table(lines.slice(at - 1), keep)];
}

/** @param {string} head @param {string} rule */
function isTable(head, rule) {
  const count = (/** @type {string} */ text) => cells({ text, at: 0 }).length;
  return head.includes("|") && rule.includes("-") && DELIMITERS.test(rule) && count(head) === count(rule);
}

/** @param {Part[]} lines @param {Keep} [keep] @returns {MdNode} */
function table([head, rule, ...rows], keep) {
  const sides = cells(rule).map(({ text }) => (text.endsWith(":") ? (text.startsWith(":") ? "center" : "right") : ""));
  /** @param {Part} line @param {string} tag */
  const row = (line, tag) => {
    const found = cells(line);
    return node("tr", sides.map((side, index) => node(tag, cell(found[index], keep), side ? { class: side } : {})));
  };
  const names = row(head, "th"), body = rows.map((line) => row(line, "td"));
  return node("table", [node("thead", [names]), ...(body.length > 0 ? [node("tbody", body)] : [])]);
}

/** @param {Part} line */
function cells(line) {
  const whole = trimmed(line), text = whole.text.replace(/^\|/, "");
  let at = whole.at + whole.text.length - text.length;
  return text.replace(/(^|[^\\])\|$/, "$1").split(/(?<!\\)\|/).map((each) => {
    at += each.length + 1;
    return trimmed({ text: each, at: at - each.length - 1 });
  });
}

/** The nodes of a cell, in which \| is a bar; none if a row lacks it. @param {Part} [part] @param {Keep} [keep] */
function cell({ text, at } = { text: "", at: 0 }, keep) {
  const parts = text.split("\\|").map((each) => {
    at += each.length + 2;
    return { text: each, at: at - each.length - 2 };
  });
  return shown(parts, "|", keep);
}

/** @param {string} line */
function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** @param {string} line @param {number} most */
function outdented(line, most) {
  return line.slice(Math.min(indentOf(line), most));
}
