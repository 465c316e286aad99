"""Stop strings cut a stream at the same place, however it is split into pieces."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twofold.core.errors import ParameterError
from twofold.text.detokenize import StopStrings

TEXT = st.text("ab\n", max_size=30)


def cut(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """The plainest way: the shortest prefix that ends with a stop string."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end if include else end - max(map(len, ended))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, max_size=8), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4), st.booleans())
@example(["aabaaab", "aaac"], ["aabaaac"], False)
def test_equals_cutting_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    stream = StopStrings(stops, include=include)
    pushed = [stream.push(piece) for piece in pieces]
    text = "".join(emitted for emitted, _ in pushed) + stream.flush()
    stopped = bool(pushed) and pushed[-1][1]
    assert (text, stopped) == cut("".join(pieces), stops, include)


@settings(max_examples=100, deadline=None)
@given(TEXT, st.text("ab\n", min_size=1, max_size=5))
def test_holds_back_no_more_than_a_possible_start(text: str, stop: str) -> None:
    stream = StopStrings([stop])
    emitted, stopped = stream.push(text)
    if not stopped:
        held = text[len(emitted) :]
        assert stop.startswith(held)
        assert not any(stop.startswith(text[start:]) for start in range(len(emitted)))


def test_which_string_stopped() -> None:
    stream = StopStrings(["b", "ab"])
    assert stream.push("xa") == ("x", False)
    assert stream.push("by") == ("", True)
    assert stream.stopped == "ab"
    assert stream.push("more") == ("", True)
    assert stream.flush() == ""


def test_one_string_may_be_given_plainly() -> None:
    assert StopStrings("END").push("a END b") == ("a ", True)


def test_without_stops_all_text_passes() -> None:
    assert StopStrings([]).push("text") == ("text", False)


@pytest.mark.parametrize(
    ("stops", "fault"), [([""], "at least one"), (["x" * 257], "too long"), (list("abcdefghijklmnopq"), "too many")]
)
def test_limits(stops: list[str], fault: str) -> None:
    with pytest.raises(ParameterError, match=fault):
        StopStrings(stops)
