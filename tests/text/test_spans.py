"""Spans of texts: they cover the text, protected ranges stay whole, kept spans join to parts of the original."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.core.errors import ParameterError
from twofold.text.spans import MAX_CHARS, MAX_SPAN_CHARS, cut, joined, protected_ranges

FENCE = "```py\nx = 1.\n\ny = 2. Z\n```"
OBJECT = '{"a": [1, "x. Y"], "b": {"c": "}\\""}}'
TOOLS = "<tools>\nOne. Two.\n</tools>"
PIECES = st.sampled_from(
    [
        FENCE,
        OBJECT,
        TOOLS,
        "One sentence. ",
        "Another! ",
        "- an item\n",
        "\n\n",
        " ",
        "你好。",
        "No end",
        "a" * 700,
        "`",
        '"',
    ]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=12).map("".join).filter(str.strip)


def texts_of(text: str, **options: Any) -> list[str]:
    return [text[span.start : span.end] for span in cut(text, **options)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "go." She went.', ['He said "go."', "She went."]),
        (
            "Dr. Smith met J. Doe at 5 p.m. today. Then e.g. this.",
            ["Dr. Smith met J. Doe at 5 p.m. today.", "Then e.g. this."],
        ),
        ("A wrapped\nline of prose. Next", ["A wrapped\nline of prose.", "Next"]),
        ("Items:\n- one\n- two\n3. Three", ["Items:", "- one", "- two", "3. Three"]),
        ("Head\n\nBody of it", ["Head", "Body of it"]),
        ("你好。世界！", ["你好。", "世界！"]),
        ("12:00 started\n12:05 stopped", ["12:00 started", "12:05 stopped"]),
    ],
)
def test_sentences(text: str, found: list[str]) -> None:
    assert texts_of(text) == found


@pytest.mark.parametrize("block", [FENCE, OBJECT, TOOLS, "~~~\nA. B.\n~~~", '["a. B", "c"]', '[{"a": 1}]'])
def test_blocks_are_protected_whole(block: str) -> None:
    text = f"Before it. More.\n{block}\nAfter it. End."
    assert [text[start:end] for start, end in protected_ranges(text)] == [block]
    assert block in texts_of(text)


def test_open_blocks_are_protected_as_far_as_they_are_known() -> None:
    assert texts_of("It ends. ```\nSo what.") == ["It ends.", "```\nSo what."]  # a fence begins a line
    assert texts_of("It ends.\n```\nSo what. Then.") == ["It ends.", "```\nSo what. Then."]
    assert texts_of('It ends. {"b": 1, "c. D\nSo what. Then.') == ["It ends.", '{"b": 1, "c. D', "So what.", "Then."]
    assert texts_of("It ends. <tools> So what.") == ["It ends.", "<tools> So what."]


def test_ranges_and_parts_of_the_caller() -> None:
    text = "Keep this. Drop that. Keep this."
    assert [(span.start, span.end) for span in cut(text, [(11, 15)]) if span.protected] == [(11, 15)]
    assert [(span.start, span.end) for span in cut(text, ["Keep this."]) if span.protected] == [(0, 10), (22, 32)]


@pytest.mark.parametrize(
    ("text", "protect", "says"),
    [
        ("", (), "is empty"),
        (" \n\t", (), "is empty"),
        (5, (), "is 5"),
        ("a. " * MAX_CHARS, (), "characters; at most"),
        ("\0\1\2abc", (), "is binary"),
        ("\ufffd" * 9, (), "is binary"),
        ("One. Two.", [(0, 10)], "is no range"),
        ("One. Two.", [(3, 3)], "is no range"),
        ("One. Two.", [(-1, 3)], "is no range"),
        ("One. Two.", [(0, True)], "is no range"),
        ("One. Two.", [(0, 4), (3, 6)], "overlap"),
        ("One. Two.", ["Three"], "does not occur"),
        ("One. Two.", [""], "does not occur"),
    ],
)
def test_impossible_texts_and_ranges(text: Any, protect: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        cut(text, protect)


@given(TEXTS, st.data())
def test_spans_and_gaps_make_the_text(text: str, data: st.DataObject) -> None:
    one, other = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    given_range = [(one, other)] if one < other else []
    spans = cut(text, given_range)
    at = 0
    for span in spans:
        assert span.gap == at <= span.start < span.end
        assert not text[span.gap : span.start].strip()
        assert span.protected or span.end - span.start <= MAX_SPAN_CHARS
        at = span.end
    assert not text[at:].strip()
    for start, end in protected_ranges(text, given_range):
        assert any(span.protected and (span.start, span.end) == (start, end) for span in spans)
    ranges = joined(text, spans, range(len(spans)))
    assert ranges == ((0, len(text)),)


@given(TEXTS, st.data())
def test_kept_spans_join_to_ascending_parts_of_the_text(text: str, data: st.DataObject) -> None:
    spans = cut(text)
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(spans))), min_size=1)))
    ranges = joined(text, spans, kept)
    assert all(start < end for start, end in ranges)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))
    covered = {offset for start, end in ranges for offset in range(start, end)}
    for index, span in enumerate(spans):
        inside = set(range(span.start, span.end))
        assert inside <= covered if index in kept else not inside & covered


@pytest.mark.parametrize(
    "unit",
    ['["', '{"a":', "<tools>", "```\n", "a", "a. ", "1. ", "[{\n", '["a",\n', "…", "\n \t", "!)", '"\\"', "a.\n\n"],
)
def test_the_work_is_bounded_for_any_text(unit: str) -> None:
    """Each of these took quadratic time in some pattern; 200,000 characters would then take minutes."""
    text = unit * (200_000 // len(unit)) + "x"
    spans = cut(text)
    assert joined(text, spans, range(len(spans))) == ((0, len(text)),)
