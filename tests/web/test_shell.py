"""The page in a browser: it loads, chats, and is accessible."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tests.server.live import LiveServer
from tests.web.browser import Outside, Watch, accessibility_faults, load_views, picture, watched
from tests.web.stage import ABOUT
from twofold.web.page import WebPage

pytestmark = pytest.mark.browser


def test_a_question_is_answered(page: Page) -> None:
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_label("Message", exact=True).fill("Hello")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_role("article")).not_to_be_empty()
    picture(page, "shell")


def test_one_can_type_after_four_requests(page: Page, server: LiveServer) -> None:
    load_views(page)  # else it may fetch one after the reload has begun
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(server.url)))
    page.reload()
    page.wait_for_function("() => performance.getEntriesByName('ready').length > 0", polling=100)
    files = [f"/web/{WebPage.read().version}/{name}" for name in ("app.css", "app.js")]
    asked = asked[asked.index("/") :]  # without the views of the page before
    first, views = asked[:4], asked[4:]
    assert sorted(first) == sorted(["/", *files, ABOUT])
    assert all(each.startswith("/web/") for each in views)  # fetched while the page is idle


def test_the_theme_can_be_chosen(page: Page) -> None:
    page.get_by_role("button", name="Dark or light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_watch_sees_what_no_page_may_do(watch: tuple[Page, Watch], server: LiveServer, elsewhere: Outside) -> None:
    page, seen = watch
    other = page.context.new_page()
    with pytest.raises(Error, match="ERR_HTTP_RESPONSE_CODE_FAILURE"):
        other.goto("http://example.invalid/x")
    other.close()
    assert elsewhere.asked.pop().startswith("GET http://example.invalid/x ")
    page.goto(server.url)

    with page.expect_console_message(lambda told: "img-src" in told.text):
        page.evaluate("() => void (new Image().src = 'https://example.invalid/x.png')")
    assert any("img-src" in each for each in seen.seen)
    with pytest.raises(AssertionError):
        seen.check()
    assert any(each == "request: http://example.invalid/x" for each in seen.seen)
    seen.expect("example.invalid|502")


def test_a_key_is_asked_for_and_kept_only_if_wanted(browser: Browser, keyed: LiveServer) -> None:
    with watched(browser, keyed.url) as (page, watch):
        watch.expect("401")  # the browser reports the refusal of the wrong key
        page.goto(keyed.url)
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key", exact=True).fill("wrong")
        dialog.get_by_role("button", name="Apply").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        assert accessibility_faults(page) == []
        dialog.get_by_label("Key", exact=True).fill("secret")
        dialog.get_by_role("button", name="Apply").click()
        expect(page.locator(".bar select")).to_have_value("tiny")
        page.reload()
        dialog.get_by_label("Key", exact=True).fill("secret")
        dialog.get_by_label("Keep it").check()
        dialog.get_by_role("button", name="Apply").click()
        expect(page.locator(".bar select")).to_have_value("tiny")
        page.reload()
        expect(page.locator(".bar select")).to_have_value("tiny")
        assert "secret" not in page.content()
