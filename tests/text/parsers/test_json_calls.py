"""Calls in JSON: read incrementally, the same however the text is cut, and never an exception."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.parsers.checks import TOOLS, check_split, pieces_of, sections_of
from twofold.text.parsers.base import Arguments, Content, SectionParser, ToolCall
from twofold.text.parsers.json_calls import HERMES, LLAMA3, MAX_DEPTH, MISTRAL, JsonFamily

FAMILIES = (HERMES, LLAMA3, MISTRAL)
PARTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(
                    "<tool_call>",
                    "</tool_call>",
                    "[TOOL_CALLS]",
                    "<|python_tag|>",
                    "<tool",
                    "```json\n",
                    "```",
                    "\n",
                    " ",
                ),
                *(
                    '{"name": "get", "arguments": ',
                    '{"name": "what", "parameters": ',
                    '{"arguments": {"a": 1}, "name": "put"}',
                ),
                *(
                    '{"a": "x\\n\\u00e9"}',
                    "{",
                    "}",
                    "[",
                    "]",
                    ",",
                    ";",
                    ":",
                    '"',
                    "\\",
                    '"name"',
                    '"get"',
                    "1",
                    "-1.5e3",
                    "true",
                ),
                *("None", "nan", "\\u12", "\\d", "\x01", "word", "é", '"{\\"a\\": 1}"', "\ud7ff", "\U0001f600"),
            ]
        ),
        st.text(max_size=6),
    ),
    max_size=14,
)


def parse(family: JsonFamily, text: str, *, parallel: bool = True) -> tuple[str, str, list[tuple[str, str]]]:
    def make() -> SectionParser:
        return family.parser(TOOLS, parallel=parallel)

    return sections_of(check_split(make, [text[:7], text[7:]]))


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(FAMILIES), PARTS, st.booleans())
def test_any_text_in_any_pieces(family: JsonFamily, parts: list[str], parallel: bool) -> None:
    pieces = check_split(lambda: family.parser(TOOLS, parallel=parallel), parts)
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert parallel or len(calls) <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(FAMILIES),
    st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_calls_come_back_as_they_were_written(
    family: JsonFamily, arguments: list[dict[str, object]], ascii_only: bool, indent: int | None
) -> None:
    texts = [
        json.dumps({"name": "get", family.key: value}, ensure_ascii=ascii_only, indent=indent) for value in arguments
    ]
    joints = "".join(family.between).join("".join((*family.before, text, *family.after)) for text in texts)
    _, content, calls = parse(family, "".join(family.first) + joints + "".join(family.last))
    assert content == ""
    assert [json.loads(text) for _, text in calls] == arguments
    assert {name for name, _ in calls} == {"get"}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('Look:\n<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>\n', "Look:", [("get", '{"a": 1}')]),
        ('<tool_call>{"name": "other", "arguments": {}}</tool_call>after', "after", [("other", "{}")]),
        ('<tool_call>{"name": "get"}</tool_call>', "", [("get", "{}")]),
        ('<tool_call>{"arguments": {"b": 2}, "id": [1], "name": "get"}</tool_call>', "", [("get", '{"b": 2}')]),
        ('<tool_call>{"name": "get", "arguments": "{\\"c\\": 3}"}</tool_call>', "", [("get", '{"c": 3}')]),
        (
            '<tool_call>[{"name": "get", "arguments": {}}, {"name": "put", "arguments": {}}]</tool_call>',
            "",
            [("get", "{}"), ("put", "{}")],
        ),
        ('<tool_call>{"name": "get", "arguments": {"a": "x\ny\\d\\\'"}}', "", [("get", '{"a": "x\\ny\\\\d\'"}')]),
        (
            '<tool_call>{"name": "get", "arguments": {"a": True, "b": None}}</tool_call>',
            "",
            [("get", '{"a": true, "b": null}')],
        ),
        ("<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ('<tool_call>{"name": "get", "arguments": 5}', '<tool_call>{"name": "get", "arguments": 5}', []),
        ('<tool_call>{"name": "get", "argu', '<tool_call>{"name": "get", "argu', []),
        ('<tool_call>x<tool_call>{"name": "get"}</tool_call>', "<tool_call>x", [("get", "{}")]),
        ('<tool_call>{"name": "get", "arguments": {"a": "cut', "", [("get", '{"a": "cut')]),
        ('<tool_call>{"name": "get", "arguments": {"a" 1}}</tool_call> b', "b", [("get", '{"a" 1}}')]),
        ('{"name": "get", "arguments": {"a": 1}}', "", [("get", '{"a": 1}')]),
        ('```json\n{"name": "get", "arguments": {"a": 1}}\n```', "", [("get", '{"a": 1}')]),
        ('```json\n{"name": "other", "arguments": {}}\n```', '```json\n{"name": "other", "arguments": {}}\n```', []),
        ('```python\nprint("a")\n```', '```python\nprint("a")\n```', []),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
        ('<tool_call>\n{{"name": "get", "arguments": {"a": 1}}}\n</tool_call>', "", [("get", '{"a": 1}')]),
        ('{{"name": "get", "arguments": {"a": {}}}}', "", [("get", '{"a": {}}')]),
        ('{{"name": "get", "arguments": {"a": 1}}} b', "b", [("get", '{"a": 1}')]),
        ('<tool_call>{{"name": "get", "arguments": {"a": 1}}</tool_call>', "", [("get", '{"a": 1}')]),
        ('{{"name": "other", "arguments": {}}}', '{{"name": "other", "arguments": {}}}', []),
        ("{{ page.title }}", "{{ page.title }}", []),
        ("{{{", "{{{", []),
        ('It is {"name": "get", "arguments": {}}', 'It is {"name": "get", "arguments": {}}', []),
        (" \n plain <tool text \n", " \n plain <tool text \n", []),
    ],
)
def test_content_and_calls_of_a_completion(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse(HERMES, text) == ("", content, calls)


def test_llama_3_writes_bare_objects_or_a_tag() -> None:
    two = '{"name": "get", "parameters": {"a": 1}}; {"name": "put", "parameters": {}}'
    assert parse(LLAMA3, two)[1:] == ("", [("get", '{"a": 1}'), ("put", "{}")])
    assert parse(LLAMA3, f"<|python_tag|>{two}")[1:] == ("", [("get", '{"a": 1}'), ("put", "{}")])
    assert parse(LLAMA3, '<|python_tag|>{"name": "new", "parameters": {}}')[2] == [("new", "{}")]


def test_mistral_writes_a_list() -> None:
    text = 'Sure.[TOOL_CALLS] [{"name": "get", "arguments": {"a": 1}, "id": "abcdefghi"}]'
    assert parse(MISTRAL, text)[1:] == ("Sure.", [("get", '{"a": 1}')])


def test_only_one_call_where_more_are_not_wanted() -> None:
    text = '<tool_call>{"name": "get"}</tool_call><tool_call>{"name": "put"}</tool_call> more'
    assert parse(HERMES, text, parallel=False)[1:] == ("", [("get", "{}")])


def test_a_call_leaves_while_it_is_written() -> None:
    parser = HERMES.parser(TOOLS, parallel=True)
    assert parser.push('Hi <tool_call>{"name": "get", "arguments": ') == [Content("Hi")]
    assert parser.push('{"a') == [ToolCall(0, "get"), Arguments(0, '{"a')]
    assert parser.push('": "long') == [Arguments(0, '": "long')]
    assert parser.push(' text"}') == [Arguments(0, ' text"}')]
    assert parser.push("}</tool") == []
    assert parser.push("_call>") == []
    assert parser.flush() == []


def test_content_is_not_held_back() -> None:
    parser = HERMES.parser(TOOLS, parallel=True)
    assert parser.push("a < b") == [Content("a < b")]
    assert parser.push(" <tool_c") == []
    assert parser.push("an") == [Content(" <tool_can")]


def test_depth_is_bounded() -> None:
    deep = "[" * (MAX_DEPTH + 1)
    assert parse(HERMES, f'<tool_call>{{"x": {deep}')[1] == f'<tool_call>{{"x": {deep}'


HOSTILE = [
    '<tool_call>{"name": "get", "arguments": {"a": "' + "x\\\\" * 110_000,
    '<tool_call>{"name": "get", "arguments": {"a": [' + "1, " * 110_000,
    "<tool_call>" * 30_000,
    '<tool_call>{"name": "' * 17_000,
    "<" * 400_000,
    " " * 400_000,
    '{"x": ' * 60_000,
    '{"name": "get", "x": "' + "y" * 400_000,
    "```" * 120_000,
    "```json\n" + " \n" * 400_000,
    "[" * 400_000,
    '<tool_call>{"name": "get", "arguments": {"a": ' + "1" * 400_000,
]


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24].strip() or "space")
def test_time_is_linear(text: str) -> None:
    """Hundreds of kilobytes in pieces of some tokens, the worst there are; what is quadratic takes minutes."""
    draw = random.Random(1)
    parts, at = [], 0
    while at < len(text):
        size = draw.randint(1, 64)
        parts.append(text[at : at + size])
        at += size
    began = time.process_time()
    parser = HERMES.parser(TOOLS, parallel=True)
    for part in parts:
        parser.push(part)
    parser.flush()
    assert time.process_time() - began < 5


def test_the_pieces_of_a_whole_are_few() -> None:
    text = '<tool_call>{"name": "get", "arguments": {"a": [1, 2, 3], "b": "c"}}</tool_call>'
    assert len(pieces_of(lambda: HERMES.parser(TOOLS, parallel=True), [text])) == 2
