"""Keyboards, forced colours, reduced motion, and a zoom of 200 %: every view can be used with them."""

from __future__ import annotations

from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.live import LiveServer
from tests.web.browser import accessibility_faults, watched
from tests.web.looks import CUT
from twofold.web.page import WebPage

pytestmark = pytest.mark.browser

VIEWS: Final = ("chat", "compare", "engine", "explore", "bench")
CLICKS: Final = """() => {
    const listen = EventTarget.prototype.addEventListener;
    window.clickable = new Set();
    window.reached = new Map();
    EventTarget.prototype.addEventListener = function (kind, ...rest) {
        if (kind === "click" && this instanceof Element) clickable.add(this);
        listen.call(this, kind, ...rest);
    };
    const outlined = (e) => getComputedStyle(e).outlineStyle !== "none";
    listen.call(window, "focusin", ({ target }) => reached.set(target, outlined(target)));
}"""
"""Notes what reacts to a click, and what had the focus, with whether that could be seen."""
MISSED: Final = """() => {
    const controls = document.querySelectorAll("button, a[href], input, select, textarea, summary, [tabindex='0']");
    const name = (e) => `${e.localName}.${e.className} "${e.ariaLabel ?? e.textContent.slice(0, 30)}"`;
    const able = (e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0;
    const seen = (e) => reached.get(e) || e.closest(".box"); // the box of the message has the outline
    return {
        count: reached.size,
        missed: [...controls].filter((e) => able(e) && !reached.has(e)).map(name),
        unseen: [...reached.keys()].filter((e) => e.isConnected && e !== document.body && !seen(e)).map(name),
        mouse: [...clickable].filter((e) => e.checkVisibility() && e.tabIndex < 0 && !e.disabled).map(name),
    };
}"""


def opened(page: Page, server: LiveServer, view: str) -> None:
    """Opens a view with what it shows first."""
    page.goto(f"{server.url}/#/{view}{'?hardware=h100&model=llama-3-8b' * (view == 'explore')}")
    expect(page.get_by_role("heading", name=view.title(), level=1)).to_be_attached()
    shown = {"engine": page.get_by_role("button", name="Pause"), "explore": page.get_by_role("img", name="Roofline")}
    expect(shown.get(view, page.locator("main"))).to_be_visible()


def test_the_keyboard_reaches_everything_that_a_mouse_does(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.url) as (page, _):
        page.add_init_script(f"({CLICKS})()")
        for view in VIEWS:
            opened(page, server, view)
            page.evaluate("() => (document.activeElement.blur(), reached.clear())")
            for _press in range(200):
                page.keyboard.press("Tab")
                told = page.evaluate(MISSED)
                if not told["missed"]:
                    break
            assert told["count"] > 8, view
            assert {name: told[name] for name in ("missed", "unseen", "mouse")} == {
                name: [] for name in ("missed", "unseen", "mouse")
            }, view


def test_forced_colours_show_what_is_chosen(page: Page, server: LiveServer) -> None:
    colours = "(e) => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
    page.emulate_media(forced_colors="active")
    for view in VIEWS:
        opened(page, server, view)
        assert accessibility_faults(page) == [], view
        tabs = page.get_by_role("navigation", name="Views", exact=True).get_by_role("link")
        assert tabs.evaluate_all(f"(all) => new Set(all.map({colours}).map(String)).size") == 2, view
        for group in page.locator(".seg").all():
            chosen, other = (group.locator(f"[aria-pressed={value}]").first for value in ("true", "false"))
            assert chosen.evaluate(colours) != other.evaluate(colours), view


def test_nothing_is_cut_off_at_200_percent_and_nothing_moves(page: Page, server: LiveServer) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.set_viewport_size({"width": 640, "height": 400})  # 1280 x 800 at 200 %
    for view in VIEWS:
        opened(page, server, view)
        assert page.evaluate(CUT) == [], view
        assert page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0, view
        assert page.evaluate("document.getAnimations().length") == 0, view
    opened(page, server, "chat")
    expect(page.get_by_label("Message", exact=True)).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Apply").press("Enter")
    for name, file in WebPage.read().files.items():
        for word in (b"transition:", b"animation:", b"@keyframes", b'behavior: "smooth"', b".animate("):
            assert word not in file.body, name
