"""Messages that were not answered: they are no part of later requests, and their text is in the message box again."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.live import LiveServer
from tests.web.browser import Watch, accessibility_faults, watched
from tests.web.stage import CHAT, chunk, refusal, unfinished
from tests.web.test_chat import CHATS, answered, bodies, say, scripted, settle

pytestmark = pytest.mark.browser

TOO_LONG: Final = "word " * 3000
"""More tokens than the context of the tiny model."""
REFUSALS: Final = {
    "too long": None,
    "busy": refusal(429, "Too many requests. Try again in 27 s.", **{"retry-after": "27"}),
    "starting": refusal(503, "The server is shutting down.", **{"retry-after": "5"}),
    "broken": refusal(500, "The engine failed."),
    "gone": lambda route: route.abort(),
    "an error as an event": lambda route: route.fulfill(
        content_type="text/event-stream", body=f"data: {json.dumps({'error': {'message': 'It broke.'}})}\n\n"
    ),
}


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


def alternates(body: dict[str, Any]) -> bool:
    """Whether no role follows itself."""
    found = roles(body)
    return all(one != other for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refused_message_is_no_part_of_later_requests(
    watch: tuple[Page, Watch], server: LiveServer, why: str
) -> None:
    page, seen = watch
    seen.expect(r"status of (400|429|500|503)|ERR_FAILED")
    page.goto(server.url)
    settle(page, max_tokens="4")
    sent, box = bodies(page), page.get_by_label("Message", exact=True)
    say(page, "First.")
    answered(page)
    text = TOO_LONG if REFUSALS[why] is None else "  What\nis it?"
    if act := REFUSALS[why]:
        page.route(CHATS, act)
    say(page, text)
    expect(page.locator(".answer .fault")).to_be_visible()
    expect(box).to_have_value(text)
    page.unroute_all()
    box.fill("Say hello.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".answer .fault")).to_have_count(0)
    answered(page)
    expect(page.locator(".ask")).to_have_count(2)
    assert roles(sent[-1]) == ["user", "assistant", "user"]
    assert sent[-1]["messages"][-1]["content"] == "Say hello."
    say(page, "And again.")
    expect(page.locator(".ask")).to_have_count(3)
    answered(page)
    assert [message["content"] for message in sent[-1]["messages"][::2]] == ["First.", "Say hello.", "And again."]
    assert all(map(alternates, sent))


def test_a_message_that_is_too_long_says_so_once_and_what_to_do(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("400")
    page.goto(server.url)
    settle(page, max_tokens="4")
    say(page, TOO_LONG)
    told = re.compile(r"^\d+ tokens do not fit the context of \d+\.")
    expect(page.locator(".answer .fault")).to_have_text(told)
    expect(page.locator(".answer .fault")).to_contain_text("serve the model with a larger --max-model-len")
    expect(page.locator(".guess")).to_have_text(re.compile(r"^\d+ tokens do not fit the context of \d+$"))
    box = page.get_by_label("Message", exact=True)
    assert box.bounding_box()["height"] > 150, "a long paragraph is not shown in two lines"  # type: ignore[index]


def test_the_first_message_may_be_refused(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("429")
    page.goto(server.url)
    settle(page, max_tokens="4")
    sent = bodies(page)
    page.route(CHATS, refusal(429, "Busy."))
    for _ in range(3):
        say(page, "Hello")
        expect(page.locator(".answer .fault")).to_be_visible()
        expect(page.locator(".ask")).to_have_count(1)
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    answered(page)
    expect(page.get_by_label("Message", exact=True)).to_have_value("")
    expect(page.get_by_text("1/")).to_have_count(0)
    assert [[message["content"] for message in body["messages"]] for body in sent] == [["Hello"]] * 4


def test_what_was_typed_meanwhile_stays_and_the_refused_message_too(
    watch: tuple[Page, Watch], server: LiveServer
) -> None:
    page, seen = watch
    seen.expect("500")
    page.goto(server.url)
    settle(page, max_tokens="4")
    sent, box = bodies(page), page.get_by_label("Message", exact=True)
    held: list[Any] = []
    page.route(CHATS, lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks handlers
    say(page, "Hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    box.fill("Something else")
    refusal(500, "It broke.")(held.pop())
    expect(page.locator(".answer .fault")).to_be_visible()
    expect(box).to_have_value("Something else")
    page.unroute_all()
    page.get_by_role("button", name="Send", exact=True).click()
    answered(page)
    assert [message["content"] for message in sent[-1]["messages"]] == ["Something else"]
    page.locator(".ask").get_by_role("button", name="Previous branch").click()
    expect(page.locator(".ask")).to_contain_text("Hello")


def test_a_message_that_is_stopped_before_its_answer_comes_back_with_its_files(page: Page) -> None:
    sent, box = bodies(page), page.get_by_label("Message", exact=True)
    settle(page, max_tokens="4")
    page.locator(".composer input[type=file]").set_input_files(
        {"name": "a.txt", "mimeType": "text/plain", "buffer": b"alpha"}
    )
    with unfinished() as url:
        page.route(f"**{CHAT}", lambda route: route.continue_(url=url))
        say(page, "What is it?")
        expect(page.locator(".answer .state")).to_contain_text("Waiting for the first token")
        page.keyboard.press("Escape")
        expect(page.locator(".answer .state")).to_have_text("You stopped it. This message is not sent with later ones.")
    expect(box).to_have_value("What is it?")
    expect(page.get_by_role("button", name="Remove a.txt")).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Send", exact=True).click()
    answered(page)
    assert len(sent) == 2
    assert sent[0]["messages"] == sent[1]["messages"]


def test_an_answer_without_text_is_an_answer(page: Page) -> None:
    sent = bodies(page)
    scripted(page, chunk({}, "stop"))
    say(page, "Say nothing.")
    expect(page.locator(".answer").get_by_role("button", name="Regenerate")).to_be_visible()
    say(page, "Say it again.")
    expect(page.locator(".ask")).to_have_count(2)
    assert [(each["role"], each["content"]) for each in sent[-1]["messages"]] == [
        ("user", "Say nothing."),
        ("assistant", ""),
        ("user", "Say it again."),
    ]


def test_a_refusal_counts_down_and_can_be_copied(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.url) as (page, seen):  # a context of its own: the installed clock stays in it
        seen.expect("429")
        page.goto(server.url)
        page.clock.install()
        page.route(CHATS, refusal(429, "Too many requests. Try again in 27 s.", **{"retry-after": "27"}))
        say(page, "Hello")
        fault = page.locator(".answer .fault")
        expect(fault).to_contain_text("Try again in 27 s.")
        page.clock.run_for(5_000)
        expect(fault.locator("p").first).to_have_text(re.compile(r"Too many requests. Try again in 2[0-3] s\."))
        expect(fault.get_by_role("button")).to_have_text(re.compile(r"Try again in 2[0-3] s"))
        expect(fault).to_have_attribute("aria-live", "off")
        page.clock.run_for(25_000)
        expect(fault.locator("p").first).to_have_text("Too many requests. Try again now.")
        expect(fault.get_by_role("button", name="Try again", exact=True)).to_be_enabled()
        assert accessibility_faults(page) == []
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        answer = page.locator(".answer")
        answer.get_by_role("button", name="Copy", exact=True).click()
        expect(answer.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "Too many requests. Try again in 27 s."
        answer.get_by_role("button", name="as curl").click()
        expect(answer.get_by_role("button", name="Copied").nth(0)).to_be_visible()
        expect(answer.get_by_role("button", name="Regenerate")).to_be_visible()


def test_both_sides_of_a_comparison_are_refused(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("500")
    page.goto(f"{server.url}/#/compare")
    page.route(CHATS, refusal(500, "It broke."))
    say(page, "Hello")
    expect(page.locator(".answer .fault")).to_have_count(2)
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")


@pytest.mark.parametrize("key", ["Escape", "Cancel"])
def test_an_edit_can_be_cancelled(page: Page, key: str) -> None:
    settle(page, max_tokens="4")
    say(page, "Hello")
    answered(page)
    page.get_by_role("button", name="Edit").click()
    field, cancel = page.get_by_label("Edited message"), page.locator(".edit").get_by_role("button", name="Cancel")
    field.fill("Other")
    expect(cancel).to_have_css("border-top-style", "solid")
    if key == "Escape":
        field.press("Escape")
    else:
        cancel.click()
    expect(field).to_have_count(0)
    expect(page.locator(".ask")).to_contain_text("Hello")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
