"""A real Chromium, and what must hold on every page that it shows."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

PICTURES: Final = "TWOFOLD_TEST_PICTURES"
"""The environment variable that names a folder for pictures of the page; without it none are kept."""
REPORT_VIOLATIONS: Final = """addEventListener("securitypolicyviolation",
    (event) => console.error(`policy: ${event.effectiveDirective} refused ${event.blockedURI} ${event.sample}`))"""


@contextmanager
def launched() -> Iterator[Browser]:
    """Chromium as it is installed; skips the test where there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
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

    def attach(self, context: BrowserContext) -> None:
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("request", self._requested)
        context.on("page", self._opened)

    def expect(self, pattern: str) -> None:
        """Accepts errors that match this pattern."""
        self.expected.append(pattern)

    def check(self) -> None:
        assert [text for text in self.seen if not any(re.search(each, text) for each in self.expected)] == []

    def _opened(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.seen.append(f"exception: {error}"))
        page.on("console", lambda told: self.seen.append(f"console: {told.text}") if told.type == "error" else None)

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:", "about:")):
            self.seen.append(f"request: {request.url}")


@contextmanager
def watched(browser: Browser, origin: str, **options: Any) -> Iterator[tuple[Page, Watch]]:
    """A page of its own context that may reach only ``origin``; it is checked at the end."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    watch = Watch(origin)
    watch.attach(context)
    try:
        page = context.new_page()
        page.set_default_timeout(15_000)
        yield page, watch
        watch.check()
    finally:
        context.close()


def accessibility_faults(page: Page) -> list[str]:
    """Violations of WCAG 2.2 AA and of best practice that axe finds, each with the elements."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {[node['target'] for node in each['nodes']][:4]}" for each in found]


def picture(page: Page, name: str) -> None:
    """Keeps a picture of the page, if a folder for pictures is named."""
    if folder := os.environ.get(PICTURES):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")
