"""What the page shows before and between requests: an empty chat, the settings, the idle engine, small screens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.server.live import LiveServer
from tests.web.looks import faults_of_looks
from tests.web.stage import chunk
from tests.web.test_chat import answered, bodies, say, scripted, settle
from tests.web.test_engine import requests

pytestmark = pytest.mark.browser


def test_an_empty_chat_shows_the_model_and_examples(page: Page) -> None:
    welcome = page.locator(".welcome")
    expect(welcome).to_contain_text(re.compile(r"tiny.*parameters · F32 · context 2,048 tokens"))
    expect(welcome).to_contain_text("Press Ctrl / for keys.")
    expect(page.get_by_role("button", name="Export")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("Delete"))).to_have_count(0)
    expect(page.locator(".head summary")).to_be_hidden()
    assert faults_of_looks(page, "welcome") == []
    sent = bodies(page)
    for number, field in enumerate(("top_logprobs", "response_format", "tools")):
        scripted(page, chunk({"content": "{}"}), chunk({}, "stop"))
        page.locator(".example").nth(number).click()
        expect(page.locator(".answer").get_by_role("button", name="Regenerate")).to_be_visible()
        assert field in sent[-1]
        expect(page.locator(".head summary")).to_be_visible()
        page.keyboard.press("Control+k")
        expect(page.get_by_role("button", name=re.compile("^(max|output format|tool choice)"))).to_have_count(0)


def test_an_empty_chat_begins_at_its_top_on_a_small_screen(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 560})
    page.reload()
    expect(page.locator(".welcome h2")).to_be_in_viewport()
    page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
    expect(page.locator(".welcome h2")).to_be_in_viewport()


def test_the_example_of_surprise_has_its_colours(page: Page) -> None:
    page.locator(".example").first.click()
    answered(page)
    expect(page.get_by_role("button", name="Surprise", exact=True)).to_have_attribute("aria-pressed", "true")
    for name in ("Surprise", "Origin"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute("title", re.compile("."))


def test_settings_show_what_is_in_force_and_drop_no_schema(page: Page) -> None:
    sent = bodies(page)
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_role("group", name="Sampling")).to_be_visible()
    expect(page.locator("#set-temperature")).to_have_attribute("placeholder", "0.2")
    expect(page.locator("#set-top_p")).to_have_attribute("placeholder", "0.9")
    expect(page.locator("#set-top_k")).to_be_hidden()  # Advanced is closed
    form, text = page.locator("#set-form"), page.locator("#set-form_text")
    for chosen, shown in (("", False), ("JSON", False), ("regex", True), ("choice", True), ("JSON schema", True)):
        form.select_option(chosen)
        expect(text).to_be_visible(visible=shown)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("JSON schema is missing.")
    text.fill('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    form.select_option("JSON")
    form.select_option("JSON schema")
    page.get_by_role("button", name="Apply").click()
    scripted(page, chunk({"content": "{}"}), chunk({}, "stop"))
    say(page, "Hello")
    expect(page.locator(".answer").get_by_role("button", name="Regenerate")).to_be_visible()
    assert sent[-1]["response_format"]["json_schema"]["schema"]["properties"] == {"a": {"type": "integer"}}
    page.get_by_role("button", name=re.compile("^output format")).click()
    expect(form).to_be_focused()


def test_an_answer_that_repeats_itself_says_so(page: Page, server: LiveServer) -> None:
    settle(page, max_tokens="8")
    say(page, "Hello")
    answered(page)
    record = server.get("/v1/twofold/requests").json()["data"][0]
    told: dict[str, Any] = server.get(f"/v1/twofold/requests/{record['id']}").json()
    told["repeats"] = {"tokens": 41, "times": 30}
    end = f"data: {json.dumps({'choices': [], 'twofold': {**told, 'object': 'twofold.request'}})}\n\n"
    scripted(page, chunk({"content": "again again"}), chunk({}, "stop"), end)
    say(page, "Hello")
    expect(page.locator(".answer").last).to_contain_text("the answer repeats itself: 41 tokens, 30 times")


def test_an_idle_engine_shows_the_last_request(page: Page, server: LiveServer) -> None:
    for thread in requests(server, 1, 6):
        thread.join()
    page.goto(f"{server.url}/#/engine")
    page.get_by_role("button", name="10 s", exact=True).wait_for()
    rest = page.get_by_role("region", name="Last request")
    expect(rest).to_contain_text("to see it run here")  # ten seconds after the last step
    expect(rest.locator(".receipt")).to_contain_text("6 out")
    expect(rest.get_by_role("link", name="Send a message")).to_have_attribute("href", "#/chat")
    assert faults_of_looks(page, "idle") == []
    for thread in requests(server, 1, 40):
        thread.join()
    expect(rest).to_be_hidden()


SMALL: str = """() => [...document.querySelectorAll("button, select, summary, input:not([type=checkbox])")]
    .filter((e) => e.checkVisibility() && !e.closest(".json, .bottom") && e.getBoundingClientRect().width > 1)
    .filter((e) => e.getBoundingClientRect().height < 43.5).map((e) => e.outerHTML.slice(0, 80))"""
"""Controls that are lower than a finger needs."""


def test_a_phone_has_large_targets_one_row_of_head_and_the_result_first(page: Page, server: LiveServer) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page, max_tokens="8")
    say(page, "Hello")
    answered(page)
    head = page.locator(".head").bounding_box()
    assert head is not None
    assert head["height"] < 70
    page.locator(".head summary").click()
    expect(page.locator(".head").get_by_role("button", name="Delete")).to_be_visible()
    assert page.evaluate(SMALL) == []
    page.keyboard.press("Escape")
    expect(page.locator(".head").get_by_role("button", name="Delete")).to_be_hidden()
    for view in ("engine", "compare", "explore"):
        page.goto(f"{server.url}/#/{view}{'?hardware=h100&model=llama-3-8b' * (view == 'explore')}")
        expect(page.get_by_role("heading", name=view.title(), level=1)).to_be_attached()
        assert page.evaluate(SMALL) == [], view
    result, form = page.get_by_role("region", name="Result"), page.get_by_role("form", name="Request")
    expect(result.get_by_role("img", name="Roofline of h100")).to_be_visible()
    assert result.bounding_box()["y"] < form.bounding_box()["y"]  # type: ignore[index]
    order = "([a, b]) => Boolean(a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING)"
    assert page.evaluate(order, [result.element_handle(), form.element_handle()])
