// @ts-check
/**
 * Markdown within a block: code, emphasis, links and addresses, as a tree of plain data. The cost is linear in the
 * text, whatever it contains: the stacks of open marks are bounded.
 */

/** @typedef {{tag: string, props: Record<string, string>, kids: MdNode[]} | string} MdNode */
/**
 * @typedef {{mark: string, size: number, from: number, at: number, opens: boolean, closes: boolean}} Run  `from`: its
 *   place in the text; `at`: in `out`
 */

const MAX_OPEN = 64;
const MAX_ADDRESS = 2000;
const SPECIAL = /[\\`*_~[\]!<h$]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ADDRESS = /https?:\/\/[^\s<>"'`[\]{}|\\^]{1,2000}/y;
const POINTED = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
/** A formula: $$…$$, $…$, \(…\) or \[…\], as answers write them. */
const FORMULA =
  /\$\$((?:\\.|[^$\\]){1,2000})\$\$|\$((?:\\.|[^$\\\n]){1,300})\$(?![\w$])|\\\(((?:[^\\]|\\(?![()])){1,300})\\\)|\\\[((?:[^\\]|\\(?![[\]])){1,2000})\\\]/sy;
/** What a text between two dollars has if it is no price. */
const IS_FORMULA = /^(?!\s)(?=.*[\\^_=<>+*/]|[A-Za-z]{1,2}'*$|[A-Za-z] ?[-(,]).*(?<!\s)$/s;
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*"|\s+'[^']*')?\s*\)/y;

/**
 * @param {string} tag
 * @param {MdNode[]} kids
 * @param {Record<string, string>} [props]
 * @returns {MdNode}
 */
export const node = (tag, kids, props = {}) => ({ tag, props, kids });

/** How code and formulas are shown: as they are written, until `rich.js` is there. */
export const rich = {
  /** @type {(text: string, language: string) => MdNode[]} */
  coloured: (text) => [text],
  /** The MathML of a formula, without its `math` element. @type {(tex: string) => MdNode[]} */
  formula: (tex) => [node("mtext", [tex])],
};

/**
 * A safe address in its normal form, or null. Only the web and mail are linked to.
 * @param {string} text
 */
export function address(text) {
  if (text.length > MAX_ADDRESS || !URL.canParse(text)) return null;
  const url = new URL(text);
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** @param {string} href @param {MdNode[]} kids @returns {MdNode} */
const link = (href, kids) => node("a", kids, { href, rel: "noopener noreferrer nofollow", target: "_blank" });

/**
 * @param {string} text
 * @param {(from: number, to: number) => void} [keep]  gets the parts of the text that are shown, in order
 * @returns {MdNode[]}
 */
export function inline(text, keep) {
  const parser = new Inline(text);
  parser.run();
  if (keep) {
    let at = 0;
    for (const [from, to] of [...parser.dropped.sort((a, b) => a[0] - b[0]), [text.length, 0]]) {
      if (from > at) keep(at, from);
      at = to;
    }
  }
  return merged(parser.out);
}

class Inline {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.at = 0;
    /** @type {MdNode[]} */
    this.out = [];
    /** @type {Run[]} */
    this.runs = [];
    /** @type {{from: number, at: number, runs: number, picture: boolean}[]} */
    this.brackets = [];
    /** @type {[number, number][]} marks that are not shown */
    this.dropped = [];
  }

  /** @param {number} from @param {number} size */
  drop(from, size) {
    this.dropped.push([from, from + size]);
  }

  run() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      const next = found ? found.index : text.length;
      if (next > this.at) this.out.push(text.slice(this.at, next));
      this.at = next;
      if (found) this.special(found[0]);
    }
  }

  /** @param {string} mark */
  special(mark) {
    if ((mark === "$" || mark === "\\") && this.formula()) return;
    if (mark === "$") return this.plain(length(this.text, this.at, "$"));
    if (mark === "\\") return this.escaped();
    if (mark === "`") return this.code();
    if (mark === "*" || mark === "_" || mark === "~") return this.emphasis(mark);
    if (mark === "[") return this.bracket(1, false);
    if (mark === "!") return this.text[this.at + 1] === "[" ? this.bracket(2, true) : this.plain(1);
    if (mark === "]") return this.close();
    return this.bare(mark);
  }

  /** @param {number} size */
  plain(size) {
    this.out.push(this.text.slice(this.at, this.at + size));
    this.at += size;
  }

  /** Takes a formula, if one begins here. */
  formula() {
    const { text, at } = this;
    FORMULA.lastIndex = at;
    const found = /[\w$]/.test(text[at - 1] ?? "") && text[at] === "$" ? null : FORMULA.exec(text);
    if (!found) return false;
    const [whole, shown, short, round, square] = found, tex = shown ?? short ?? round ?? square;
    if (!(shown ?? round) && !IS_FORMULA.test(square ? tex.trim() : tex)) return false;
    const display = shown ?? square ? { display: "block" } : {};
    this.out.push(node("math", [], { tex, .../** @type {Record<string, string>} */ (display) }));
    this.drop(at, whole.length);
    this.at += whole.length;
    return true;
  }

  escaped() {
    const next = this.text[this.at + 1] ?? "";
    if (!ESCAPABLE.test(next)) return this.plain(1);
    this.out.push(next);
    this.drop(this.at, 1);
    this.at += 2;
  }

  code() {
    const { text, at } = this;
    const size = length(text, at, "`"), fence = "`".repeat(size);
    for (let end = text.indexOf(fence, at + size); end >= 0; end = text.indexOf(fence, end)) {
      const closing = length(text, end, "`");
      if (closing === size) {
        const inner = text.slice(at + size, end);
        const spaced = /^ .*[^ ].* $/s.test(inner);
        this.out.push(node("code", [spaced ? inner.slice(1, -1) : inner]));
        this.drop(at, size + Number(spaced));
        this.drop(end - Number(spaced), size + Number(spaced));
        this.at = end + size;
        return;
      }
      end += closing;
    }
    this.plain(size);
  }

  /** @param {string} mark */
  emphasis(mark) {
    const { text, at } = this;
    const size = length(text, at, mark);
    const before = text[at - 1] ?? " ", after = text[at + size] ?? " ";
    const left = /\S/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const right = /\S/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const word = mark === "_";
    const opens = left && (!word || !right || PUNCTUATION.test(before));
    const closes = right && (!word || !left || PUNCTUATION.test(after));
    this.at += size;
    const run = { mark, size: mark === "~" && size !== 2 ? 0 : size, from: at, at: this.out.length, opens, closes };
    this.out.push(text.slice(at, at + size));
    if (closes) this.pair(run);
    if (opens && run.size > 0 && typeof this.out[run.at] === "string") {
      this.runs.push(run);
      if (this.runs.length > MAX_OPEN) this.runs.shift();
    }
  }

  /** Wraps what lies between a closing run and its openers. @param {Run} closer */
  pair(closer) {
    const floor = this.brackets.at(-1)?.runs ?? 0;
    while (closer.size > 0) {
      let index = this.runs.length - 1;
      while (index >= floor && this.runs[index].mark !== closer.mark) index -= 1;
      if (index < floor) return;
      const opener = this.runs[index];
      this.runs.length = index + 1;
      const used = closer.mark === "~" ? 2 : Math.min(opener.size, closer.size, 2);
      const kids = merged(this.out.splice(opener.at + 1, closer.at - opener.at - 1));
      opener.size -= used;
      closer.size -= used;
      this.drop(opener.from + opener.size, used);
      this.drop(closer.from, used);
      closer.from += used;
      const tag = closer.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      this.out[opener.at] = closer.mark.repeat(opener.size);
      this.out.splice(opener.at + 1, 0, node(tag, kids));
      closer.at = opener.at + 2;
      this.out[closer.at] = closer.mark.repeat(closer.size);
      if (opener.size === 0) this.runs.pop();
    }
  }

  /** @param {number} size @param {boolean} picture */
  bracket(size, picture) {
    this.brackets.push({ from: this.at, at: this.out.length, runs: this.runs.length, picture });
    if (this.brackets.length > MAX_OPEN) this.brackets.shift();
    this.plain(size);
  }

  close() {
    const open = this.brackets.pop();
    TARGET.lastIndex = this.at + 1;
    const target = open && !open.picture ? TARGET.exec(this.text) : null;
    const href = target && address(target[1]);
    if (!open || !target || !href) return this.plain(1);
    const kids = merged(this.out.splice(open.at + 1));
    this.runs.length = Math.min(this.runs.length, open.runs);
    this.out[open.at] = link(href, unlinked(kids));
    const shown = href.replace(/^https?:\/\/|^mailto:|\/$/g, "");
    if (plainText(kids).replace(/^https?:\/\/|\/$/g, "") !== shown) {
      this.out.push(node("span", [` (${shown.length > 60 ? `${shown.slice(0, 59)}…` : shown})`], { class: "where" }));
    }
    this.brackets = [];
    this.drop(open.from, 1);
    this.drop(this.at, TARGET.lastIndex - this.at);
    this.at = TARGET.lastIndex;
  }

  /** An address that is written out. @param {string} mark */
  bare(mark) {
    const pattern = mark === "<" ? POINTED : ADDRESS;
    pattern.lastIndex = this.at;
    const inside = mark === "h" && /\w/.test(this.text[this.at - 1] ?? "");
    const found = inside ? null : pattern.exec(this.text);
    if (!found) return this.plain(1);
    const written = mark === "<" ? found[1] : found[0].replace(/[.,:;!?)*_~]+$/, "");
    const href = address(written);
    if (!href) return this.plain(1);
    this.out.push(link(href, [written]));
    if (mark === "<") (this.drop(this.at, 1), this.drop(this.at + found[0].length - 1, 1));
    this.at += mark === "<" ? found[0].length : written.length;
  }
}

/** @param {string} text @param {number} at @param {string} mark */
function length(text, at, mark) {
  let end = at;
  while (text[end] === mark) end += 1;
  return end - at;
}

/** Neighbouring texts as one. @param {MdNode[]} nodes @returns {MdNode[]} */
function merged(nodes) {
  /** @type {MdNode[]} */
  const found = [];
  for (const each of nodes) {
    const last = found.length - 1;
    if (each === "") continue;
    if (typeof each === "string" && typeof found[last] === "string") found[last] += each;
    else found.push(each);
  }
  return found;
}

/** Links in a link become their text. @param {MdNode[]} nodes @returns {MdNode[]} */
function unlinked(nodes) {
  return nodes.flatMap((each) => {
    if (typeof each === "string") return [each];
    return each.tag === "a" ? each.kids : [{ ...each, kids: unlinked(each.kids) }];
  });
}

/** @param {MdNode[]} nodes @returns {string} */
function plainText(nodes) {
  return nodes.map((each) => typeof each === "string" ? each : plainText(each.kids)).join("");
}
