"""Compare in Chromium: one message to two settings, in turn and together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.server.live import LiveServer
from tests.web.looks import faults_of_looks

pytestmark = pytest.mark.browser


def settle(page: Page, side: str, **fields: str) -> None:
    page.get_by_role("region", name=side, exact=True).get_by_role("button", name="Settings").click()
    for name, value in fields.items():
        page.locator(f"#set-{name}").fill(value)
    page.get_by_role("button", name="Apply").click()


def compare(page: Page, text: str) -> list[str]:
    """Sends a message; what the page says of the answers."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    told = page.get_by_role("listitem")
    page.locator(".differences").wait_for(state="visible")
    return told.all_inner_texts()


@pytest.mark.parametrize("order", ["In turn", "Together"])
def test_two_settings_are_compared(page: Page, server: LiveServer, order: str) -> None:
    page.goto(f"{server.url}/#/compare")
    bodies: list[dict[str, Any]] = []

    def note(sent: Request) -> None:
        if sent.url.endswith("/completions"):
            bodies.append(json.loads(sent.post_data or ""))

    page.on("request", note)
    settle(page, "A", max_tokens="8", cache_salt=f"a {order}")
    settle(page, "B", max_tokens="16", cache_salt=f"b {order}")
    page.get_by_role("button", name=order, exact=True).click()
    told = compare(page, "Hello")
    assert any(line.startswith("Output: A 8 tokens, B 16 tokens.") for line in told), told
    assert not any(line.startswith("Cached") for line in told)
    assert sorted(body["max_tokens"] for body in bodies) == [8, 16]
    axes = page.locator(".when .axis span:last-child").all_inner_texts()
    assert len(axes) == 2
    assert axes[0] == axes[1], "both receipts have one axis"


def test_an_answer_again_is_compared_again(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/compare")
    for side in "AB":
        settle(page, side, max_tokens="8", seed="3")
    assert "The texts are the same." in compare(page, "Hello")
    with page.expect_response("**/v1/chat/completions"):
        page.get_by_role("region", name="B", exact=True).get_by_role("button", name="Regenerate").click()
    expect(page.locator(".differences")).to_contain_text("The texts are the same.")


def test_everyone_can_use_it(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/compare")
    for side in "AB":
        settle(page, side, max_tokens="8")
    compare(page, "Hello")
    assert faults_of_looks(page, "compare") == []
