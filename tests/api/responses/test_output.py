"""Output items from pieces: what opens an item, what ends it, and what it then holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.api.completions import data_of, events
from tests.api.responses.conftest import WEATHER, SampleCompletion, read, streamed
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.reply import EndStatus, OutputItems
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, ToolCall


class Scripted:
    """A parser for which each character stands for the next pieces, and the end for the last ones."""

    def __init__(self, *script: Sequence[Piece]) -> None:
        self._script = list(script)

    def push(self, text: str) -> Sequence[Piece]:
        return [piece for _ in text for piece in self._script.pop(0)]

    def flush(self) -> Sequence[Piece]:
        return self._script.pop(0) if self._script else []


def output_items(*script: Sequence[Piece], status: EndStatus = "completed") -> tuple[list[Any], list[Any]]:
    output = OutputItems("r1", Scripted(*script))
    sent = [event for _ in script[:-1] for event in output.take("x")] + list(output.close(status))
    return data_of(output.items), data_of(sent)


def text_of(item: dict[str, Any]) -> str:
    text: str = item["content"][0]["text"]
    return text


def test_white_space_waits_for_what_follows() -> None:
    items, _ = output_items([Content("\n")], [Content(" a")], [Content(" ")], [])
    assert [text_of(item) for item in items] == ["\n a "]
    items, sent = output_items(
        [ToolCall(0, "f"), Arguments(0, "{}")], [Content("\n")], [ToolCall(1, "g")], [Content("\n")]
    )
    assert [item["type"] for item in items] == ["function_call", "function_call"]
    assert [item["name"] for item in items] == ["f", "g"]
    assert not [event for event in sent if "output_text" in event["type"]]


def test_a_call_without_arguments_has_empty_ones() -> None:
    items, sent = output_items([ToolCall(0, "f")], [])
    assert items[0]["arguments"] == "{}"
    assert [event["delta"] for event in sent if "delta" in event] == ["{}"]
    items, sent = output_items([ToolCall(0, "f")], [], status="incomplete")
    assert (items[0]["arguments"], items[0]["status"]) == ("", "incomplete")
    assert not [event for event in sent if "delta" in event]


def test_what_was_held_back_comes_at_the_end(facts: ModelFacts) -> None:
    sent = events(streamed(read(tools=[WEATHER]), SampleCompletion(facts, "a<tool_c", "length")))
    assert text_of(sent[-1]["response"]["output"][0]) == "a<tool_c"


@pytest.mark.parametrize("last", [[], [Reasoning("hm")]])
def test_a_completed_response_without_text_has_an_empty_message(last: list[Piece]) -> None:
    items, _ = output_items(last, [])
    assert (items[-1]["type"], text_of(items[-1])) == ("message", "")
    assert [item["type"] for item in output_items(last, [], status="incomplete")[0]] == ["reasoning"] * len(last)


def test_every_item_but_the_last_is_completed() -> None:
    items, _ = output_items([Reasoning("hm"), Content("a")], [ToolCall(0, "f")], [Content("b")], status="incomplete")
    assert [item["status"] for item in items] == ["completed", "completed", "completed", "incomplete"]
    assert [item["id"] for item in items] == ["rs_r1_0", "msg_r1_1", "fc_r1_2", "msg_r1_3"]
