"""The thinking section is taken from the start of a completion, however the text is split."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.parsers.checks import TOOLS, check_split, sections_of
from twofold.text.parsers.base import Content, PlainParser, Reasoning, SectionParser
from twofold.text.parsers.json_calls import HERMES
from twofold.text.parsers.thinking import ThinkingParser

PARTS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<thi",
            "nk>",
            "</",
            " ",
            "\n\n",
            "text",
            "a",
            "<tool_call>",
            '{"name": "f"}',
            "</tool_call>",
        ]
    ),
    max_size=12,
)


def parser(*, opened: bool = False, tools: bool = False) -> SectionParser:
    then = HERMES.parser(TOOLS, parallel=True) if tools else PlainParser()
    return ThinkingParser("<think>", "</think>", opened=opened, then=then)


@settings(max_examples=200, deadline=None)
@given(PARTS, st.booleans(), st.booleans())
def test_any_text_in_any_pieces(parts: list[str], opened: bool, tools: bool) -> None:
    pieces = check_split(lambda: parser(opened=opened, tools=tools), parts)
    kinds = [type(piece) for piece in pieces]
    assert Reasoning not in kinds[1:]


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nso", False, "why", "so"),
        (" \n<think>why</think>so", False, "why", "so"),
        ("why\n</think>\n\nso", True, "why", "so"),
        ("</think>so", True, "", "so"),
        ("<think></think>so", False, "", "so"),
        ("so", False, "", "so"),
        (" so ", False, "", " so "),
        ("so <think>x</think>", False, "", "so <think>x</think>"),
        ("never closed ", True, "never closed", ""),
        ("<think>a </thin", False, "a </thin", ""),
        ("<thin", False, "", "<thin"),
        ("<think>a  b</think>", False, "a  b", ""),
        ("", True, "", ""),
    ],
)
def test_what_is_thought_and_said(text: str, opened: bool, reasoning: str, content: str) -> None:
    pieces = check_split(lambda: parser(opened=opened), [text])
    assert sections_of(pieces) == (reasoning, content, [])


def test_calls_follow_the_section() -> None:
    text = '<think>a <tool_call> in thought</think>\n<tool_call>{"name": "f"}</tool_call>'
    pieces = check_split(lambda: parser(tools=True), [text])
    assert sections_of(pieces) == ("a <tool_call> in thought", "", [("f", "{}")])


def test_thoughts_leave_as_they_come() -> None:
    stream = parser(opened=True)
    assert stream.push("one two") == [Reasoning("one two")]
    assert stream.push(" three ") == [Reasoning(" three")]
    assert stream.push("</thi") == []
    assert list(stream.push("nk> yes")) == [Content("yes")]


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("text", ["<" * 400_000, " \n" * 80_000, "word " * 80_000, "</think" * 60_000])
def test_time_is_linear(text: str) -> None:
    draw = random.Random(1)
    stream = parser(opened=True)
    began, at = time.process_time(), 0
    while at < len(text):
        size = draw.randint(1, 64)
        stream.push(text[at : at + size])
        at += size
    stream.flush()
    assert time.process_time() - began < 5
