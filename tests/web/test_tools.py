"""Tools in the chat: calls as cards, and the two tools that the page runs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.browser import accessibility_faults
from tests.web.stage import CHAT, called, chunk, progress, through, unfinished
from tests.web.test_chat import CHATS, bodies, say, scripted

pytestmark = pytest.mark.browser


def test_a_call_is_a_card_and_its_result_is_sent(page: Page) -> None:
    sent = bodies(page)
    scripted(page, called("weather", '{"city": "Ulm"}'))
    say(page, "How is the weather?")
    card = page.get_by_role("group", name="Call of weather")
    expect(card).to_contain_text('"Ulm"')
    card.get_by_label("Result of weather").fill("rain")
    page.unroute(CHATS)
    scripted(page, chunk({"content": "It rains."}), chunk({}, "stop"))
    page.get_by_role("button", name="Send the result").click()
    expect(page.locator(".answer").last).to_contain_text("It rains.")
    assert sent[-1]["messages"][-1] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert sent[-1]["messages"][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}


def test_the_built_in_calculator_answers_by_itself(page: Page) -> None:
    answers = [called("calculate", '{"expression": "6*7"}'), chunk({"content": "It is 42."}) + chunk({}, "stop")]
    sent = bodies(page)

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=answers.pop(0) + "data: [DONE]\n\n")

    page.route(CHATS, answer)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Built-in calculator").check()
    page.get_by_role("button", name="Apply").click()
    say(page, "What is 6*7?")
    expect(page.locator(".answer").last).to_contain_text("It is 42.")
    assert sent[0]["tools"][0]["function"]["name"] == "calculate"
    assert sent[1]["messages"][-1]["content"] == "42"


def test_a_model_that_calls_without_end_waits_for_the_user(page: Page) -> None:
    sent = bodies(page)
    scripted(page, called("calculate", '{"expression": "6*7"}'))
    say(page, "What is 6*7?")
    expect(page.get_by_role("button", name="Send the result")).to_be_visible()
    assert len(sent) == 6


def test_a_call_grows_as_it_is_written(page: Page) -> None:
    start, more = called("weather", '{"city": "Ulm", "da').removesuffix(chunk({}, "tool_calls")), []
    more = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in ('ys": ', "3")]
    for events, says in (((start,), '{"city": "Ulm", "da'), ((start, *more), '{"city": "Ulm", "days": 3')):
        with unfinished(*events) as answering:
            page.route(f"**{CHAT}", through(answering))
            say(page, "How is the weather?")
            card = page.get_by_role("group", name="Call of weather").last
            expect(card.locator("pre")).to_have_text(says)
            expect(page.get_by_role("button", name="Stop")).to_be_visible()
            expect(page.locator(".answer").last.locator(".state")).to_be_hidden()
            assert accessibility_faults(page) == []
            page.keyboard.press("Escape")
            expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
            expect(card).to_contain_text(says)
            page.unroute_all()


def test_what_is_waited_for_is_said_with_its_time(page: Page) -> None:
    with unfinished(progress({"state": "prefill", "cached": 0, "done": 40, "of": 100}, 50.0)) as answering:
        page.route(f"**{CHAT}", through(answering))
        say(page, "Hello")
        expect(page.locator(".answer .state")).to_have_text(re.compile(r"^prefill 40% · 100 tokens · [1-9]\d* s$"))
        page.keyboard.press("Escape")
