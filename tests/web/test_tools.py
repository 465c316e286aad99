"""Tools in the chat: calls as cards, and the two tools that the page runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.stage import called, chunk
from tests.web.test_chat import CHATS, bodies, say, scripted

pytestmark = pytest.mark.browser


def test_a_call_is_a_card_and_its_result_is_sent(page: Page) -> None:
    sent = bodies(page)
    scripted(page, called("weather", '{"city": "Ulm"}'))
    say(page, "How is the weather?")
    card = page.get_by_role("region", name="Call of weather")
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
