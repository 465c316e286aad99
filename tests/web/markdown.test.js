// @ts-check
import assert from "node:assert/strict";
import { address, inline } from "../../twofold/web/static/text/inline.js";
import { coloured } from "../../twofold/web/static/text/code.js";
import { formula } from "../../twofold/web/static/text/math.js";
import { mount } from "../../twofold/web/static/text/rich.js";
import { markdownTree, plain, shownParts } from "../../twofold/web/static/text/md.js";

/** @typedef {import("../../twofold/web/static/text/inline.js").MdNode} MdNode */

mount();

/** @param {MdNode[]} nodes @returns {string} */
function outline(nodes) {
  return nodes.map((each) => {
    if (typeof each === "string") return each;
    const props = Object.entries(each.props).filter(([, value]) => value).map(([name, value]) => ` ${name}=${value}`);
    return `<${each.tag}${props.join("")}>${outline(each.kids)}</${each.tag}>`;
  }).join("");
}

/** @param {string} text */
function whole(text) {
  const markdown = markdownTree();
  markdown.write(text);
  return markdown.tree();
}

/** @param {string} text @param {string} expected */
const shows = (text, expected) => assert.equal(outline(whole(text)), expected);

Deno.test("blocks", () => {
  shows("# A\n## B ##\ntext", "<h3 class=level1>A</h3><h3 class=level2>B</h3><p>text</p>");
  shows("a\nb\n\nc", "<p>a\nb</p><p>c</p>");
  shows("a\n\n---\nb", "<p>a</p><hr></hr><p>b</p>");
  shows(
    "```js\nlet a;\n\n  # b\n```\nc",
    "<pre data-language=js><code><span class=hk>let</span> a;\n\n  # b</code></pre><p>c</p>",
  );
  shows("```\nopen", "<pre><code>open</code></pre>");
  shows("> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>");
  shows("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>");
  shows("1. a\n\n   b\n2. c", "<ol><li><p>a</p><p>b</p></li><li>c</li></ol>");
  shows("3) a", "<ol start=3><li>a</li></ol>");
  shows("- [x] a\n- [ ] b", "<ul><li><span class=box>☑ </span>a</li><li><span class=box>☐ </span>b</li></ul>");
  shows("1. a\n   ```\n   b\n   ```\n2. c", "<ol><li>a<pre><code>b</code></pre></li><li>c</li></ol>");
  shows("In 1984.\n1984. was", "<p>In 1984.\n1984. was</p>");
});

Deno.test("tables", () => {
  shows(
    "t\n\n| a | b |\n|---|--:|\n| `x` | 2 |\n",
    "<p>t</p><table><thead><tr><th>a</th><th class=right>b</th></tr></thead>" +
      "<tbody><tr><td><code>x</code></td><td class=right>2</td></tr></tbody></table>",
  );
  shows("a | b\nc | d", "<p>a | b\nc | d</p>");
});

Deno.test("inline marks", () => {
  shows(
    "*a* **b** ***c*** ~~d~~ `e`",
    [
      "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <code>e</code></p>",
    ].join(""),
  );
  shows("snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>");
  shows("**bold *both* bold**", "<p><strong>bold <em>both</em> bold</strong></p>");
  shows("\\*a\\* ``a`b``", "<p>*a* <code>a`b</code></p>");
  shows("**open", "<p>**open</p>");
});

Deno.test("links show where they lead, pictures stay text", () => {
  const rel = "rel=noopener noreferrer nofollow target=_blank";
  shows(
    "[a](https://b.example/c)",
    [
      `<p><a href=https://b.example/c ${rel}>a</a><span class=where> (b.example/c)</span></p>`,
    ].join(""),
  );
  shows("see https://a.example/b.", `<p>see <a href=https://a.example/b ${rel}>https://a.example/b</a>.</p>`);
  shows(
    "![a](https://b.example/c.png)",
    [
      `<p>![a](<a href=https://b.example/c.png ${rel}>https://b.example/c.png</a>)</p>`,
    ].join(""),
  );
  for (
    const bad of ["javascript:alert(1)", "data:text/html,x", "vbscript:x", "//a.example", "/v1/models", "file:///x"]
  ) {
    assert.equal(address(bad), null);
    assert.equal(outline(inline(`[a](${bad})`)), `[a](${bad})`);
  }
});

Deno.test("formulas are found, and prices are not", () => {
  const math = (/** @type {string} */ tex, display = "") => `<math tex=${tex}${display && " display=block"}></math>`;
  shows("Let $a^2+b^2=c^2$, or \\(x\\).", `<p>Let ${math("a^2+b^2=c^2")}, or ${math("x")}.</p>`);
  shows("so $$x = 1$$ is", `<p>so ${math("x = 1", "d")} is</p>`);
  shows("$$\nx\n- b\n# 1\n$$\nend", `<p>${math("\nx\n- b\n# 1\n", "d")}</p><p>end</p>`);
  shows("\\[\n\\frac{a}{b}\n\\]", `<p>${math("\n\\frac{a}{b}\n", "d")}</p>`);
  shows("- a $n$\n- $f(x)$", `<ul><li>a ${math("n")}</li><li>${math("f(x)")}</li></ul>`);
  for (
    const plain of [
      "It costs $5 and $10.",
      "from $5, or 5$ each",
      "US$5 = CA$7",
      "$HOME/bin:$PATH",
      "a $ b $ c",
      "$$ open",
      "$5/month and $6/month",
      "1$",
    ]
  ) shows(plain, `<p>${plain}</p>`);
  shows("\\$a=b\\$ and `$a=b$` and \\[1\\]", "<p>$a=b$ and <code>$a=b$</code> and [1]</p>");
});

Deno.test("formulas become MathML", () => {
  const made = (/** @type {string} */ tex, /** @type {string} */ expected) =>
    assert.equal(outline(formula(tex)), expected);
  made("a^2", "<msup><mi>a</mi><mn>2</mn></msup>");
  made("x_{i+1}^n", "<msubsup><mi>x</mi><mrow><mi>i</mi><mo>+</mo><mn>1</mn></mrow><mi>n</mi></msubsup>");
  made("\\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>");
  made("\\frac{1}{\\sqrt[3]{x}}", "<mfrac><mn>1</mn><mroot><mi>x</mi><mn>3</mn></mroot></mfrac>");
  made("\\sum_{k=1}^n", "<munderover><mo>∑</mo><mrow><mi>k</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>");
  made("\\left(\\alpha\\right]", "<mrow><mo>(</mo><mi>α</mi><mo>]</mo></mrow>");
  made("\\text{if } x'", "<mtext>if </mtext><msup><mi>x</mi><mo>′</mo></msup>");
  made("\\unknown}", "<mtext>\\unknown</mtext><mo>}</mo>");
  const row = "<mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr>";
  made("\\begin{pmatrix}a&b\\\\a&b\\end{pmatrix}", `<mrow><mo>(</mo><mtable>${row}${row}</mtable><mo>)</mo></mrow>`);
});

Deno.test("any formula is read to its end", () => {
  const parts =
    "\\frac \\sqrt [ ] { } ^ _ & \\\\ \\left \\right \\begin{cases} \\end{cases} \\text { a 1 ' \\ \\hat - ( )".split(
      " ",
    );
  for (let seed = 0; seed < 3000; seed++) {
    const next = random(seed), size = Math.floor(next() * 30);
    const tex = Array.from({ length: size }, () => parts[Math.floor(next() * parts.length)]).join(" ");
    const check = (/** @type {MdNode} */ each) => {
      if (typeof each === "string") return;
      if (/^(mfrac|msup|msub|mover|munder|mroot)$/.test(each.tag)) assert.equal(each.kids.length, 2, tex);
      each.kids.forEach(check);
    };
    formula(tex).forEach(check);
  }
});

Deno.test("code is coloured, and stays the same text", () => {
  assert.equal(
    outline(coloured('def f(a): # "x"\n  return "é" + 1', "py")),
    '<span class=hk>def</span> f(a): <span class=hc># "x"</span>\n  <span class=hk>return</span> ' +
      '<span class=hs>"é"</span> + <span class=hn>1</span>',
  );
  assert.equal(
    outline(coloured("SELECT 1 -- a", "sql")),
    "<span class=hk>SELECT</span> <span class=hn>1</span> <span class=hc>-- a</span>",
  );
  assert.equal(outline(coloured("let a", "unknown")), "let a");
  for (let seed = 0; seed < 500; seed++) {
    const text = randomText(random(seed));
    for (const language of ["py", "js", "sh", "sql"]) assert.equal(leaves(coloured(text, language)), text);
  }
});

/** @param {number} seed */
const random = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};
const PARTS = [
  ..."*_`~[]()!<>#-+|\\ \n\n\n\t1.:aé😀$$^",
  ...["$$\n", "\n$$\n", "$a^2$", "\\(", "\\)", "\\[", "\\]"],
  ...["```", "~~~", "```js\n", "\n\n", "\r\n", "---", "**", "- ", "1. ", "> ", "# ", "| a | b |\n|---|---|\n", "    "],
  ...["https://a.example/b", "[a](https://b.example)", "<script>", "word", "\n- [x] ", "\n  - ", "\n   "],
];

/** @param {() => number} next */
function randomText(next) {
  const parts = 1 + Math.floor(next() * 60);
  return Array.from({ length: parts }, () => PARTS[Math.floor(next() * PARTS.length)]).join("");
}

/** The text of the model, without what the page adds. @param {MdNode[]} nodes @returns {string} */
const leaves = (nodes) =>
  nodes.map((each) => typeof each === "string" ? each : /^(where|box)$/.test(each.props.class) ? "" : leaves(each.kids))
    .join("");

Deno.test("each shown character has its place in the text, always", () => {
  const join = (/** @type {string} */ text) => shownParts(text).map(([at, size]) => text.slice(at, at + size)).join("");
  assert.equal(join("1. 1 **b** [is](http://is.com)is `` ` ``\n"), "1 b isis `");
  assert.equal(join("| a | b |\n|---|---|\n| `a\\|a` | \\*b |\n"), "aba\\a*b");
  for (let seed = 0; seed < 3000; seed++) {
    const text = plain(randomText(random(seed))), shown = leaves(whole(text)), found = shownParts(text);
    let last = 0;
    for (const [at, size] of found) (assert.ok(at >= last && size > 0 || size === 0, text), last = at + size);
    const source = found.map(([at, size]) => text.slice(at, at + size)).join("");
    assert.equal(source.length, shown.length, JSON.stringify(text));
    for (let i = 0; i < shown.length; i++) {
      const joint = (shown[i] === "\n" && /\s/.test(source[i])) || (shown[i] === "|" && source[i] === "\\");
      assert.ok(joint || shown[i] === source[i], JSON.stringify([text, shown, source]));
    }
  }
});

Deno.test("a text in any pieces is shown as the whole text, always", () => {
  for (let seed = 0; seed < 3000; seed++) {
    const next = random(seed), text = randomText(next);
    const streamed = markdownTree();
    for (let at = 0; at < text.length;) {
      const size = 1 + Math.floor(next() * 7);
      streamed.write(text.slice(at, at + size));
      at += size;
      assert.deepEqual(streamed.tree(), whole(text.slice(0, at)), JSON.stringify(text));
    }
  }
});
