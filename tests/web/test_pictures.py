"""The pictures of the documentation: the page over the default model, made where a folder for pictures is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.server.live import live_server
from tests.web.browser import PICTURES, picture, watched
from tests.web.test_chat import answered, say, settle
from tests.web.test_engine import requests


@pytest.mark.browser
@pytest.mark.skipif(PICTURES not in os.environ, reason=f"{PICTURES} names no folder for pictures")
def test_pictures_of_the_default_model(browser: Browser, tmp_path: Path) -> None:
    """A chat beside its engine, and the engine while it is busy; for docs/images."""
    view = {"width": 1440, "height": 900}
    with live_server(tmp_path) as server, watched(browser, server.url, viewport=view) as (page, _):
        page.goto(server.url)
        settle(page, max_tokens="110", seed="7")
        page.locator("body").press("e")
        expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()
        for question in ("Why is the sky blue?", "Explain in two sentences how rain forms."):
            say(page, question)
            answered(page)
        page.get_by_role("button", name="What would help?").last.click()
        expect(page.locator(".helps").last).to_contain_text("Would help:")
        page.locator(".answer").last.get_by_role("button", name="Surprise").click()
        tokens = page.get_by_role("group", name="Tokens of this answer")
        for _press in range(6):
            tokens.press("ArrowRight")
        expect(page.locator(".pop")).to_contain_text("in step")
        page.get_by_label("Message", exact=True).fill("And how does snow form?")
        expect(page.locator(".guess")).to_contain_text("tokens")
        page.wait_for_timeout(1000)
        picture(page, "docs_chat")
        page.goto(f"{server.url}/#/engine")
        threads = requests(server, 24, 120)
        page.wait_for_timeout(4500)
        picture(page, "docs_engine")
        for thread in threads:
            thread.join()
