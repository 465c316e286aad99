"""A real Chromium, and what must hold on every page that it shows."""

from __future__ import annotations

import os
import re
import shutil
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

from twofold.web.page import WebPage, sources

PICTURES: Final = "TWOFOLD_TEST_PICTURES"
"""The environment variable that names a folder for pictures of the page; without it none are kept."""
REPORT_VIOLATIONS: Final = """addEventListener("securitypolicyviolation",
    (event) => console.error(`policy: ${event.effectiveDirective} refused ${event.blockedURI} ${event.sample}`))"""

OWN: Final = re.compile(r"[A-Z]+ (https?://)?[a-z0-9.-]+\.(google|googleapis|gstatic|gvt1)\.com[:/]")
DESKTOP: Final[ViewportSize] = {"width": 1440, "height": 900}
PATIENCE_MS: Final = 60_000
AXE: Final = Axe()
COLOURED: Final = ["color-contrast", "link-in-text-block"]
"""The rules of axe that depend on colours."""
FAULTS: Final = """(only) => axe.run({ exclude: ["svg *"] }, {
    ...(only && { runOnly: only }), resultTypes: ["violations"], elementRef: false, preload: false,
}).then(({ violations }) =>
    violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 4).map((each) => each.target).join(", ")}`))"""
"""Charts are images with a name and a table; their thousands of shapes say nothing to axe."""


class Outside(socketserver.ThreadingTCPServer):
    """The browser's proxy for all hosts except this machine. It connects to none of them. ``asked`` lists the requests,
    without those that Chromium sends to Google by itself; ``Watch`` checks the requests of the page."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Refusal)


class _Refusal(socketserver.StreamRequestHandler):
    server: Outside

    def handle(self) -> None:
        line = self.rfile.readline(4096).decode("latin-1").strip()
        if not OWN.match(line):
            self.server.asked.append(line)
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@contextmanager
def outside() -> Iterator[Outside]:
    """The proxy, while it runs."""
    with Outside() as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@contextmanager
def launched(proxy: Outside) -> Iterator[Browser]:
    """Chromium as it is installed; skips the test where there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    arguments = [f"--proxy-server=127.0.0.1:{proxy.server_address[1]}", "--disable-gpu"]
    with sync_playwright() as playwright:
        arguments += ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """What a page did that no page may do: errors on its console, exceptions, violations of its policy, and requests to
    other origins. ``expect`` is for errors that a test provokes."""

    origin: str
    seen: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def attach(self, context: BrowserContext, page: Page) -> None:
        for target, event, listener in self._listeners(context, page):
            target.on(event, listener)

    def detach(self, context: BrowserContext, page: Page) -> None:
        for target, event, listener in self._listeners(context, page):
            target.remove_listener(event, listener)

    def _listeners(self, context: BrowserContext, page: Page) -> tuple[tuple[Any, str, Any], ...]:
        return (
            (context, "request", self._requested),
            (page, "pageerror", self._failed),
            (page, "console", self._told),
        )

    def expect(self, pattern: str) -> None:
        """Accepts errors that match this pattern."""
        self.expected.append(pattern)

    def check(self) -> None:
        assert [text for text in self.seen if not any(re.search(each, text) for each in self.expected)] == []

    def _failed(self, error: Error) -> None:
        self.seen.append(f"exception: {error}")

    def _told(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.seen.append(f"console: {message.text} ({message.location['url']})")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:", "about:")):
            self.seen.append(f"request: {request.url}")


def serve_sources(page: Page) -> None:
    """Lets scripts in ``page`` import the modules of its sources from ``/sources/``."""
    found = sources()
    page.route(
        "**/sources/**",
        lambda route: route.fulfill(
            body=found[route.request.url.partition("/sources/")[2]], content_type="text/javascript"
        ),
    )


def load_views(page: Page) -> None:
    """Loads the scripts that an opened page fetches while it is idle, so that it fetches none of them later."""
    shown = WebPage.read()
    paths = [f"/web/{shown.version}/{name}" for name in shown.files if name.endswith(".js")]
    page.evaluate("(paths) => Promise.all(paths.map((path) => import(path)))", paths)


@contextmanager
def tabs(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of its own context."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.add_init_script(REPORT_VIOLATIONS)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
    finally:
        context.close()


@contextmanager
def bound(page: Page, origin: str) -> Iterator[Watch]:
    """Watches a page that may reach only ``origin``; it is checked at the end."""
    watch = Watch(origin)
    watch.attach(page.context, page)
    try:
        yield watch
        watch.check()
    finally:
        watch.detach(page.context, page)


@contextmanager
def watched(browser: Browser, origin: str, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """A page of its own context that may reach only ``origin``; it is checked at the end."""
    with tabs(browser, **options) as page, bound(page, origin) as watch:
        yield page, watch


@contextmanager
def fresh(page: Page, origin: str) -> Iterator[Watch]:
    """A used page as if it were new, but for listeners of its tests and for modules that the browser keeps."""
    try:
        with bound(page, origin) as watch:
            yield watch
    finally:
        page.unroute_all()
        page.evaluate("() => location.protocol === 'about:' || sessionStorage.clear()")
        page.goto("about:blank")
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light", reduced_motion="no-preference", forced_colors="none")
        session = page.context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage,indexeddb"})
        session.detach()


def accessibility_faults(page: Page, rules: list[str] | None = None) -> list[str]:
    """Violations of WCAG 2.2 AA and of best practice that axe finds, each with its elements; by all rules or some."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
    return list(page.evaluate(FAULTS, rules))


def picture(page: Page, name: str) -> None:
    """Keeps a picture of the page, if a folder for pictures is named."""
    if folder := os.environ.get(PICTURES):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")
