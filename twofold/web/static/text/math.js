// @ts-check
/** Formulas: the part of TeX that answers use, as MathML. What is not known is shown as it is written. */

import { node } from "./inline.js";

/** @typedef {import("./inline.js").MdNode} MdNode */

const TOKEN = /\\(?:[A-Za-z]+|[\s\S])|\d+(?:\.\d+)?|\s+|[\s\S]/gu;

/** @param {string} text @returns {Record<string, string>} */
const pairs = (text) => Object.fromEntries(text.split(" ").map((each) => each.split(":")));
const LETTERS = pairs(
  "alpha:α beta:β gamma:γ delta:δ epsilon:ϵ zeta:ζ eta:η theta:θ kappa:κ lambda:λ mu:μ nu:ν pi:π rho:ρ " +
    "sigma:σ tau:τ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Pi:Π Sigma:Σ Phi:Φ Psi:Ψ Omega:Ω " +
    "infty:∞ partial:∂ nabla:∇ ell:ℓ emptyset:∅ R:ℝ N:ℕ Z:ℤ Q:ℚ C:ℂ",
);
const SIGNS = pairs(
  "times:× cdot:⋅ div:÷ pm:± le:≤ leq:≤ ge:≥ geq:≥ ne:≠ neq:≠ approx:≈ equiv:≡ sim:∼ propto:∝ in:∈ notin:∉ " +
    "subset:⊂ subseteq:⊆ cup:∪ cap:∩ to:→ rightarrow:→ leftarrow:← Rightarrow:⇒ implies:⟹ iff:⟺ " +
    "forall:∀ exists:∃ neg:¬ land:∧ lor:∨ circ:∘ mid:∣ ldots:… dots:… cdots:⋯ langle:⟨ " +
    "rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ prime:′ sum:∑ prod:∏ int:∫ {:{ }:} %:% $:$ _:_ &:&",
);
const ACCENTS = pairs("hat:^ bar:¯ overline:¯ vec:→ tilde:~");
const SPACES = pairs(",:\u2009 ::\u2005 ;:\u2005 quad:\u2003 qquad:\u2003\u2003");
const FENCES = pairs("pmatrix:() bmatrix:[] vmatrix:|| cases:{");
const words = (/** @type {string} */ text) => new Set(text.split(" "));
const FUNCTIONS = words("sin cos tan cot log ln exp det dim gcd");
const LIMITS = words("lim max min sup inf"), VERBATIM = words("text mathrm operatorname");
const UNSHOWN = words("mathbf mathit mathcal boldsymbol displaystyle limits !");
const BIG = new Set("∑∏");

/** The MathML of a formula, without its `math` element. @param {string} tex @returns {MdNode[]} */
export function formula(tex) {
  const reader = new Reader(tex), all = [];
  while (reader.at < reader.tokens.length) {
    all.push(...reader.row());
    if (reader.at < reader.tokens.length) all.push(node("mo", [shown(reader.tokens[reader.at++])])); // a stray end
  }
  return all;
}

/** @param {string} token */
const shown = (token) => token === "\\\\" ? " " : token;
/** @param {MdNode[]} kids */
const one = (kids) => kids.length === 1 ? kids[0] : node("mrow", kids);

class Reader {
  /** @param {string} tex */
  constructor(tex) {
    this.tokens = tex.match(TOKEN) ?? [];
    this.at = 0;
  }

  skip() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
  }

  /** @param {string} token whether it comes, and takes it */
  take(token) {
    this.skip();
    if (this.tokens[this.at] !== token) return false;
    this.at += 1;
    return true;
  }

  /** Atoms with their scripts, up to what ends a group. @param {string} [end] */
  row(end = "") {
    /** @type {MdNode[]} */
    const found = [];
    for (this.skip(); this.at < this.tokens.length; this.skip()) {
      const token = this.tokens[this.at];
      if (token === end || ["}", "&", "\\\\", "\\right", "\\end"].includes(token)) break;
      const before = this.at, atom = this.scripted();
      if (atom) found.push(atom);
      if (this.at === before) this.at += 1;
    }
    return found;
  }

  /** @returns {MdNode | null} */
  scripted() {
    const base = "^_".includes(this.tokens[this.at]) ? node("mrow", []) : this.atom();
    /** @type {MdNode | null} */
    let over = null, under = null;
    for (;;) {
      if (this.take("^")) over = this.argument();
      else if (this.take("_")) under = this.argument();
      else if (this.tokens[this.at] === "'") (this.at += 1, over = one([...over ? [over] : [], node("mo", ["′"])]));
      else break;
    }
    if (!base || (!over && !under)) return base;
    const [text] = typeof base === "string" ? [""] : base.kids;
    const far = typeof text === "string" && (BIG.has(text) || LIMITS.has(text));
    const tag = over && under
      ? (far ? "munderover" : "msubsup")
      : over
      ? (far ? "mover" : "msup")
      : far
      ? "munder"
      : "msub";
    return node(tag, [base, under, over].filter((each) => each !== null));
  }

  /** A group in braces, or one atom. @returns {MdNode} */
  argument() {
    this.skip();
    if (this.at >= this.tokens.length || "}&".includes(this.tokens[this.at])) return node("mrow", []);
    const token = this.tokens[this.at];
    if (/^\d./.test(token)) this.tokens.splice(this.at, 1, token[0], token.slice(1)); // 12 is 1 and 2 here
    return this.atom() ?? node("mrow", []);
  }

  /** The text in braces, as it is. */
  raw() {
    if (!this.take("{")) return this.tokens[this.at++] ?? "";
    let text = "";
    for (let depth = 1; this.at < this.tokens.length;) {
      const token = this.tokens[this.at++];
      depth += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (depth === 0) break;
      text += token;
    }
    return text;
  }

  /** @returns {MdNode | null} null for what shows nothing */
  atom() {
    const token = this.tokens[this.at++];
    if (token === "{") {
      const kids = this.row();
      this.take("}");
      return one(kids);
    }
    if (/^\d/.test(token)) return node("mn", [token]);
    if (/^\p{L}/u.test(token)) return node("mi", [token]);
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    return node("mo", [token === "-" ? "−" : token === "*" ? "∗" : token]);
  }

  /** @param {string} name @returns {MdNode | null} */
  command(name) {
    if (Object.hasOwn(LETTERS, name)) return node("mi", [LETTERS[name]]);
    if (Object.hasOwn(SIGNS, name)) return node("mo", [SIGNS[name]]);
    if (Object.hasOwn(SPACES, name)) return node("mtext", [SPACES[name]]);
    if (Object.hasOwn(ACCENTS, name)) return node("mover", [this.argument(), node("mo", [ACCENTS[name]])]);
    if (FUNCTIONS.has(name) || LIMITS.has(name)) return node("mi", [name]);
    if (VERBATIM.has(name)) return node("mtext", [this.raw()]);
    if (name === "mathbb") return this.command(this.raw());
    if (UNSHOWN.has(name) || name === " ") return null;
    if (/^[dt]?frac$/.test(name)) return node("mfrac", [this.argument(), this.argument()]);
    if (name === "sqrt") return this.root();
    if (name === "left") return this.between();
    if (name === "begin") return this.table();
    return node("mtext", [name.length === 1 ? name : `\\${name}`]);
  }

  root() {
    if (!this.take("[")) return node("msqrt", [this.argument()]);
    const degree = this.row("]");
    this.take("]");
    return node("mroot", [this.argument(), one(degree)]);
  }

  /** What is between \left and \right. */
  between() {
    const open = this.delimiter(), kids = this.row(), close = this.take("\\right") ? this.delimiter() : "";
    return this.fenced([open, close], ...kids);
  }

  delimiter() {
    this.skip();
    const token = this.tokens[this.at++] ?? "";
    return token === "." ? "" : SIGNS[token.slice(1)] ?? token;
  }

  /** @param {string | string[]} marks @param {...MdNode} kids */
  fenced([open, close = ""], ...kids) {
    return node("mrow", [...open ? [node("mo", [open])] : [], ...kids, ...close ? [node("mo", [close])] : []]);
  }

  /** An environment with rows and columns. */
  table() {
    const name = this.raw().replace("*", "");
    /** @type {MdNode[][]} */
    const rows = [[]];
    while (this.at < this.tokens.length && !this.take("\\end")) {
      rows[rows.length - 1].push(one(this.row()));
      if (this.take("\\\\")) rows.push([]);
      else if (!this.take("&") && this.tokens[this.at] !== "\\end") this.at += 1;
    }
    this.raw();
    const table = node("mtable", rows.filter((row) => row.length > 0).map(cells));
    return this.fenced(FENCES[name] ?? ["", ""], table);
  }
}

/** A row of a table. @param {MdNode[]} row */
const cells = (row) => node("mtr", row.map((each) => node("mtd", [each])));
