// @ts-check
import assert from "node:assert/strict";
import { address, inline } from "../../twofold/web/static/text/inline.js";
import { markdownTree, plain, shownParts } from "../../twofold/web/static/text/md.js";

/** @typedef {import("../../twofold/web/static/text/inline.js").MdNode} MdNode */

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
  shows("```js\nlet a;\n\n  # b\n```\nc", "<pre data-language=js><code>let a;\n\n  # b</code></pre><p>c</p>");
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

/** @param {number} seed */
const random = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};
const PARTS = [
  ..."*_`~[]()!<>#-+|\\ \n\n\n\t1.:aé😀",
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
