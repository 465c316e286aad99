"""Text of a model in Chromium: it becomes only the elements it may, and the same ones in any pieces."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Page

from tests.web.browser import serve_sources
from tests.web.hostile import hostile_texts

pytestmark = pytest.mark.browser

SHOW: Final = """async (texts) => {
    const { createMarkdown, showMarkdown, TAGS } = await import("/sources/text/md.js");
    const names = new Set(["class", "href", "rel", "target", "start", "tabindex", "data-language", "type"]);
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
            if (!TAGS.includes(element.localName)) faults.push([element.localName, text]);
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
