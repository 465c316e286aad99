"""Anthropic's controls of the cache: where they are allowed, and which pins they become."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.api.anthropic.claude_code import first_turn, later_turn
from tests.api.anthropic.conftest import WEATHER, body, read
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError

SOON, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def text(said: str, control: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": said} | ({} if control is None else {"cache_control": control})


def test_controls_are_points_in_the_order_tools_system_messages() -> None:
    request = read(
        tools=[WEATHER | {"cache_control": HOUR}],
        system=[text("a", HOUR), text("b")],
        messages=[{"role": "user", "content": [text("c", SOON), text("d")]}],
        cache_control={"type": "ephemeral", "ttl": "5m"},
    )
    assert request.conversation.cache_points == (
        CachePoint("1h", tool=0),
        CachePoint("1h", message=0, part=0),
        CachePoint("5m", message=1, part=0),
        CachePoint("5m", message=1),
    )


def test_controls_on_calls_and_results() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                text("I look."),
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {}, "cache_control": SOON},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {}, "cache_control": SOON},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text("a", SOON), text("b")]},
                {"type": "tool_result", "tool_use_id": "t2", "cache_control": SOON},
            ],
        },
    ]
    assert read(messages=messages).conversation.cache_points == (
        CachePoint(message=1, part=1),
        CachePoint(message=1, part=2),
        CachePoint(message=2, part=0),
        CachePoint(message=3, part=0),
    )


@pytest.mark.parametrize(
    ("control", "param"),
    [
        ({}, "cache_control.type"),
        ({"type": "permanent"}, "cache_control.type"),
        ({"type": "ephemeral", "ttl": "30m"}, "cache_control.ttl"),
        ({"type": "ephemeral", "ttl": 300}, "cache_control.ttl"),
        ({"type": "ephemeral", "tll": "5m"}, "cache_control.tll"),
        ("ephemeral", "cache_control"),
    ],
)
def test_controls_that_cannot_be_are_refused_by_name(control: Any, param: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(cache_control=control)
    assert caught.value.param == param


def test_a_fifth_control_is_refused() -> None:
    four = [text(name, SOON) for name in "abcd"]
    assert len(read(system=four).conversation.cache_points) == 4
    with pytest.raises(FieldError, match="more than 4") as caught:
        read(system=four, cache_control=SOON)
    assert caught.value.param == "cache_control"


def test_an_hour_behind_five_minutes_is_refused() -> None:
    read(tools=[WEATHER | {"cache_control": HOUR}], system=[text("a", SOON)])
    with pytest.raises(FieldError, match="1h") as caught:
        read(tools=[WEATHER | {"cache_control": SOON}], system=[text("a", HOUR)])
    assert caught.value.param == "system[0].cache_control"


@pytest.mark.parametrize("make", [first_turn, later_turn])
def test_claude_code_is_understood(make: Any, plain: ModelFacts) -> None:
    request = MessagesRequest.read(make())
    (job,) = request.prepare(plain)
    assert "billing" not in plain.tokenizer.decode(job.token_ids)
    assert [pin.ttl for pin in job.options.cache_pins] == ["1h", "1h", "5m"]


def test_another_billing_header_changes_no_token(plain: ModelFacts) -> None:
    one, other = (MessagesRequest.read(later_turn(nonce)).prepare(plain)[0] for nonce in ("111", "222222"))
    assert one == other


def test_the_next_turn_begins_with_what_the_one_before_held(plain: ModelFacts) -> None:
    (before,), (after,) = (MessagesRequest.read(make()).prepare(plain) for make in (first_turn, later_turn))
    assert before.token_ids is not None
    assert after.token_ids is not None
    held = before.options.cache_pins[-1].tokens
    assert before.token_ids[:held] == after.token_ids[:held]
    assert plain.tokenizer.decode(before.token_ids[:held]).endswith("Why does the test fail?")


def test_reading_leaves_the_body_as_it_is() -> None:
    given = body(**{name: value for name, value in later_turn().items() if name != "max_tokens"})
    before = copy.deepcopy(given)
    MessagesRequest.read(given)
    assert given == before
