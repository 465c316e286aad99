// @ts-check
/** Colours of code: comments, strings, numbers and keywords, by a few rules for each family of languages. */

import { node } from "./inline.js";

/** @typedef {import("./inline.js").MdNode} MdNode */

const MAX_CHARS = 20_000;
const HASH = "#[^\\n]*", SLASH = "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)", DASH = "--[^\\n]*";
const STRINGS = `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|` +
  "`(?:\\\\.|[^`\\\\])*`?";
/** Keywords of all of them: a word that is one elsewhere does no harm. */
const WORDS = new Set(
  ("and as async await break by case class const continue create def default del do done elif else enum esac except export " +
    "extends false fi finally fn for from func function group if impl import in insert into interface is join lambda let " +
    "limit local match new nil none not null on or order pass private pub public raise return select self set static struct " +
    "super switch table then this throw trait true try type update use using values var void where while with yield")
    .split(" "),
);
/** What begins a comment in a language. @type {Record<string, string>} */
const COMMENTS = {};
for (
  const [names, comment] of [
    ["py python rb ruby toml yaml yml sh bash shell console", HASH],
    ["js jsx ts tsx javascript typescript json c cpp java go rust csharp kotlin swift", SLASH],
    ["sql lua", DASH],
  ]
) for (const name of names.split(" ")) COMMENTS[name] = comment;

/** Code as texts and coloured spans. @param {string} text @param {string} language @returns {MdNode[]} */
export function coloured(text, language) {
  const name = language.toLowerCase();
  if (!Object.hasOwn(COMMENTS, name) || text.length > MAX_CHARS) return [text];
  const found = new RegExp(`(${COMMENTS[name]})|(${STRINGS})|\\b(\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  /** @type {MdNode[]} */
  const out = [];
  let last = 0;
  for (const match of text.matchAll(found)) {
    const [whole, isComment, isText, isNumber] = match;
    const kind = isComment ? "hc" : isText ? "hs" : isNumber ? "hn" : WORDS.has(whole.toLowerCase()) ? "hk" : "";
    if (!kind) continue;
    if (match.index > last) out.push(text.slice(last, match.index));
    out.push(node("span", [whole], { class: kind }));
    last = match.index + whole.length;
  }
  if (last < text.length) out.push(text.slice(last));
  return out;
}
