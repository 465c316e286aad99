"""Text of a model in Chromium: it becomes only the elements it may, and the same ones in any pieces."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Page, expect

from tests.web.browser import serve_sources
from tests.web.hostile import hostile_texts
from tests.web.looks import faults_of_looks
from tests.web.test_chat import MARKED, say, scripted, tokens_of

pytestmark = pytest.mark.browser

SHOW: Final = """async (texts) => {
    const { createMarkdown, showMarkdown, TAGS, MATH_TAGS } = await import("/sources/text/md.js");
    (await import("/sources/text/rich.js")).mount();
    const names = new Set(["class", "href", "rel", "target", "start", "tabindex", "data-language", "type", "display"]);
    const faults = [];
    let links = 0;
    for (const text of texts) {
        const whole = document.createElement("div"), pieces = document.createElement("div");
        document.body.append(whole);
        showMarkdown(whole, text);
        const stream = createMarkdown(pieces);
        for (let at = 0; at < text.length; at += 3) {
            stream.write(text.slice(at, at + 3));
            stream.draw();
        }
        if (whole.innerHTML !== pieces.innerHTML) faults.push(["pieces", text]);
        for (const element of whole.querySelectorAll("*")) {
            if (![...TAGS, ...MATH_TAGS].includes(element.localName)) faults.push([element.localName, text]);
            for (const { name, value } of element.attributes) {
                if (!names.has(name)) faults.push([name, text]);
                if (name === "href") {
                    links += 1;
                    if (!/^(https?:\\/\\/|mailto:)/.test(value)) faults.push([value, text]);
                    if (element.rel !== "noopener noreferrer nofollow") faults.push(["rel", text]);
                }
            }
        }
        whole.remove();
    }
    return { faults: faults.slice(0, 5), links };
}"""


def test_hostile_texts_stay_text(page: Page) -> None:
    serve_sources(page)
    told = page.evaluate(SHOW, hostile_texts(3_000))
    assert told["faults"] == []
    assert told["links"] > 500


MIXED: Final = "```py\ndef f(): # a\n  return 1\n```\n\nSo $a^2$ and\n\n$$\n\\frac{1}{2}\n$$\n\nend"


def test_formulas_and_code_are_shown_and_their_tokens_keep_their_places(page: Page) -> None:
    page.wait_for_function("() => performance.getEntriesByType('resource').some(({ name }) => /text.js/.test(name))")
    scripted(page, tokens_of(MIXED, 3))
    say(page, "Hello")
    text = page.locator(".answer .text")
    expect(text.locator("math")).to_have_count(2)
    expect(text.locator("math[display=block] mfrac")).to_be_visible()
    expect(text.locator("pre .hk")).to_have_text(["def", "return"])
    page.locator(".answer").get_by_role("button", name="Surprise").click()
    expect(text.locator("pre .hk")).to_have_count(2)  # colours of tokens are on the rendered text
    assert "".join(page.evaluate(MARKED)) == "def f(): # a\n  return 1So  andend"
    assert faults_of_looks(page, "formulas") == []
