"""Calls written as Python and in Gemma's notation: read without running them, and never an exception."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.parsers.checks import TOOLS, check_split, sections_of
from twofold.text.parsers.base import SectionParser, ToolCall
from twofold.text.parsers.family import Call, ToolFamily
from twofold.text.parsers.gemma import FUNCTION_GEMMA, GEMMA4
from twofold.text.parsers.pythonic import PYTHONIC
from twofold.text.parsers.tagged import TAGGED

FAMILIES: tuple[ToolFamily, ...] = (PYTHONIC, FUNCTION_GEMMA, GEMMA4, TAGGED)
PARTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(
                    "[",
                    "]",
                    "get(",
                    "put(",
                    "what(",
                    ")",
                    "a=",
                    "b=1",
                    ",",
                    '"',
                    "'",
                    '"""',
                    "'''",
                    "\\",
                    "x",
                    "-1.5e9",
                    "1" * 500,
                ),
                *(
                    "True",
                    "None",
                    "{",
                    "}",
                    ":",
                    "```tool_code\n",
                    "```",
                    "<|python_start|>",
                    "<|python_end|>",
                    "\n",
                    " ",
                    "\\u00",
                ),
                *("<start_function_call>", "<end_function_call>", "call:get{", "<escape>", "a:", "<esc", "call:"),
                *(
                    "<tool_call>",
                    "</tool_call>",
                    "<function=get>",
                    "<parameter=a>",
                    "</parameter>",
                    "</function>",
                    "<x>",
                    "<",
                ),
            ]
        ),
        st.text(max_size=5),
    ),
    max_size=14,
)


def parse(family: ToolFamily, text: str) -> tuple[str, list[tuple[str, object]]]:
    def make() -> SectionParser:
        return family.parser(TOOLS, parallel=True)

    _, content, calls = sections_of(check_split(make, [text[:9], text[9:]]))
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(FAMILIES), PARTS, st.booleans())
def test_any_text_in_any_pieces(family: ToolFamily, parts: list[str], parallel: bool) -> None:
    pieces = check_split(lambda: family.parser(TOOLS, parallel=parallel), parts)
    assert parallel or len([piece for piece in pieces if isinstance(piece, ToolCall)]) <= 1
    for _, arguments in sections_of(pieces)[2] if family is not TAGGED else ():
        assert isinstance(json.loads(arguments), dict)


KEYS = st.text("abc_", min_size=1, max_size=5)
TEXTS = st.text(max_size=8).filter(lambda text: "<" not in text)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(FAMILIES[:3]), st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3))
def test_calls_come_back_as_they_were_written(family: ToolFamily, arguments: list[dict[str, object]]) -> None:
    text = family.written([Call("get", value) for value in arguments])
    assert parse(family, text) == ("", [("get", value) for value in arguments])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[get(a=1, b="x, (y)"), put()]', "", [("get", {"a": 1, "b": "x, (y)"}), ("put", {})]),
        (
            "[get(a='it\\'s', b=[1, (2, 3)], c={'d': None},)]",
            "",
            [("get", {"a": "it's", "b": [1, [2, 3]], "c": {"d": None}})],
        ),
        ('[get(a="""x"y\'""", b="")]', "", [("get", {"a": "x\"y'", "b": ""})]),
        ('[get(a="\\d\\u00e9\\x41\\n")]', "", [("get", {"a": "\\d\u00e9A\n"})]),
        ("Sure:\n```tool_code\nother(a=1)\nget()\n```\nDone", "Sure:\nDone", [("other", {"a": 1}), ("get", {})]),
        ("<|python_start|>[other(a=true)]<|python_end|>", "", [("other", {"a": True})]),
        ("[other(a=1)]", "[other(a=1)]", []),
        ("[1, 2, 3]", "[1, 2, 3]", []),
        ("[get(1)]", "[get(1)]", []),
        ("[get(a=open('x'))]", "[get(a=open('x'))]", []),
        ("[get(a=1e999)]", "[get(a=1e999)]", []),
        ("[get(a=1", "[get(a=1", []),
        ("[get(a=1), get(2)] x", ", get(2)] x", [("get", {"a": 1})]),
        ("see [get(a=1)]", "see [get(a=1)]", []),
    ],
)
def test_what_a_completion_in_python_calls(text: str, content: str, calls: list[tuple[str, object]]) -> None:
    assert parse(PYTHONIC, text) == (content, calls)


def test_gemma_marks_its_texts() -> None:
    text = "<start_function_call>call:get{city:<escape>a}, {b<escape>,days:3,more:{x:[true]}}<end_function_call>"
    assert parse(FUNCTION_GEMMA, text) == ("", [("get", {"city": "a}, {b", "days": 3, "more": {"x": [True]}})])
    assert parse(GEMMA4, '<|tool_call>call:get{a:<|"|>"<|"|>}<tool_call|>') == ("", [("get", {"a": '"'})])
    assert parse(FUNCTION_GEMMA, "<start_function_call>nothing") == ("<start_function_call>nothing", [])


def test_tags_are_read_as_the_schema_says() -> None:
    kinds = {
        "n": {"type": "integer"},
        "t": {"type": "string"},
        "o": {"type": ["object", "null"]},
        "b": {"type": "boolean"},
    }
    tool = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": kinds}}}
    values = {"n": 5, "t": "5\n</div> é", "o": {"x": [None]}, "b": True, "other": "7"}
    text = f"So:\n{TAGGED.written([Call('get', values), Call('new', {})])}"
    _, content, calls = sections_of(check_split(lambda: TAGGED.parser([tool], parallel=True), [text]))
    assert (content, [name for name, _ in calls]) == ("So:", ["get", "new"])
    assert [json.loads(arguments) for _, arguments in calls] == [values, {}]
    odd = "<tool_call><function=get><parameter=n>five</parameter><parameter=b>True</parameter></function></tool_call>"
    _, _, calls = sections_of(check_split(lambda: TAGGED.parser([tool], parallel=True), [odd]))
    assert json.loads(calls[0][1]) == {"n": "five", "b": True}
    lone = '<tool_call><function=get><parameter=o>{"x": "\\ud800"}</parameter></function></tool_call>'
    _, _, calls = sections_of(check_split(lambda: TAGGED.parser([tool], parallel=True), [lone]))
    assert json.loads(calls[0][1].encode()) == {"o": '{"x": "\\ud800"}'}


HOSTILE = [
    '[get(a="' + "x'\\\\" * 70_000,
    "[get(" + "(" * 300_000,
    "[get(a=" + "[" * 150_000 + "]" * 150_000 + ")]",
    "[get(a=[" + "1, " * 150_000 + "])]",
    "[get(a=" + "'" * 300_000,
    "```tool_code\n" + "a" * 300_000,
    "```tool_code\n" * 20_000,
]


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12].strip())
def test_time_is_linear(text: str) -> None:
    draw = random.Random(1)
    parser = PYTHONIC.parser(TOOLS, parallel=True)
    began, at = time.process_time(), 0
    while at < len(text):
        size = draw.randint(1, 64)
        parser.push(text[at : at + size])
        at += size
    parser.flush()
    assert time.process_time() - began < 5
