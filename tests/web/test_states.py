"""Every view in every state of the server, in both themes and on both sizes of screens: accessible, and nothing cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.bench.report.runs import document, mixed
from tests.server.live import LiveServer
from tests.web.browser import Watch
from tests.web.looks import SIZES, THEMES, faults_of_looks
from tests.web.stage import ANSWER, BUSY, FAILED, Stage, chunk, unfinished
from tests.web.test_engine import requests

pytestmark = pytest.mark.browser

STATES: Final = ("empty", "busy", "error", "loading", "refused", "offline")
RESULT: Final = document(mixed(12)).to_json()


SAID: Final = {"error": FAILED, "refused": BUSY, "offline": "The server does not answer."}


def chats(page: Page, state: str) -> Locator:
    message = page.get_by_label("Message", exact=True)
    if state == "empty":
        return message
    message.fill("Hello, what is half of it?")
    message.press("Enter")
    shown = {"busy": page.get_by_text("of it", exact=True), "loading": page.get_by_text("tiny is being loaded")}
    return shown[state].last if state in shown else page.locator(".answer .fault", has_text=SAID[state]).last


def engine(page: Page, state: str) -> Locator:
    shown = {"empty": page.locator("canvas.fold"), "busy": page.locator(".said", has_text=re.compile("decode rows?"))}
    return shown.get(state, page.locator(".fault", has_text=SAID.get(state, "The model is loading.")))


def explore(page: Page, state: str) -> Locator:
    waits = page.get_by_text("Calculating …")
    shown = {"empty": page.get_by_role("img", name="Roofline of h100"), "busy": waits, "loading": waits}
    return shown[state] if state in shown else page.get_by_role("alert").get_by_text(SAID[state])


def bench(page: Page, state: str) -> Locator:
    """Files are read whatever the server does."""
    if state == "empty":
        return page.get_by_text("Drop files of twofold bench --output here")
    text = b"{" if state == "error" else RESULT
    page.get_by_label("Result files", exact=True).set_input_files(
        {"name": "a.json", "mimeType": "application/json", "buffer": text}
    )
    return page.get_by_role("alert") if state == "error" else page.get_by_role("img", name="Requests")


VIEWS: Final[Mapping[str, Callable[[Page, str], Locator]]] = {
    "chat": chats,
    "compare": chats,
    "engine": engine,
    "explore": explore,
    "bench": bench,
}
"""How each view is brought into a state, and what it shows then."""


def test_every_view_is_accessible_in_every_state(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect(r"status of (429|500)|ERR_FAILED")
    found: dict[tuple[str, str], list[str]] = {}
    with unfinished(chunk({"content": ANSWER})) as answering:
        stage = Stage(page, server, answering)
        for state in STATES:
            stage.state = state
            page.goto(f"{server.url}/#/bench")
            page.reload()  # reads again what the server is
            for view, bring in VIEWS.items():
                page.goto(f"{server.url}/#/{view}{'?hardware=h100&model=llama-3-8b' * (view == 'explore')}")
                expect(page.get_by_role("heading", name=view.title(), level=1)).to_be_attached()
                if (view, state) == ("engine", "busy"):
                    for thread in requests(server):
                        thread.join()
                expect(bring(page, state)).to_be_visible()
                found[view, state] = faults_of_looks(page, f"{view} {state}")
    looks = len(THEMES) * len(SIZES)
    print(f"{len(found) * looks} combinations: {tuple(VIEWS)} x {STATES} x {THEMES} x {SIZES}")
    assert len(found) * looks == len(VIEWS) * len(STATES) * looks == 120
    assert [each for told in found.values() for each in told] == []
