"""What errors repeat of what callers wrote, and how much work a suggestion is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twofold.api.fields import FieldError
from twofold.api.openai.chat import ChatRequest
from twofold.core.errors import MAX_COMPARED, MAX_QUOTED, closest_match, describe_name, quoted, spelled

LONG = "temperature" * 200_000


def test_long_names_are_not_compared() -> None:
    def known() -> Iterator[str]:
        raise AssertionError("a long name was compared")
        yield ""

    assert closest_match(LONG, known()) is None
    assert closest_match("t" * (MAX_QUOTED + 1), ["t" * MAX_QUOTED]) is None
    assert closest_match("temprature", ["top_p", "temperature"]) == "temperature"


def test_only_so_many_names_are_compared() -> None:
    taken = 0

    def known() -> Iterator[str]:
        nonlocal taken
        for number in range(1_000_000):
            taken += 1
            yield f"name-{number}" * 1000

    assert closest_match("name", known()) is None
    assert taken <= MAX_COMPARED + 1


def test_text_of_callers_is_quoted_shortened_and_escaped() -> None:
    assert quoted("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert len(quoted(LONG)) <= MAX_QUOTED + 3
    assert spelled("messages[0].content") == "messages[0].content"
    assert spelled("my secret\n") == r"'my secret\n'"
    assert describe_name(["secret"] * 3) == "a list of 3"


@pytest.mark.parametrize("value", [LONG, [LONG], {LONG: LONG}, [1.5] * 100_000])
def test_a_wrong_choice_is_not_repeated(value: object) -> None:
    with pytest.raises(FieldError) as caught:
        ChatRequest.read({"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": value})
    assert len(str(caught.value)) < 200
    assert caught.value.hint is None


def test_an_unknown_field_is_named_in_short() -> None:
    with pytest.raises(FieldError) as caught:
        ChatRequest.read({"messages": [{"role": "user", "content": "hi", LONG: 1}]})
    assert len(str(caught.value)) < 120
    assert len(caught.value.param) < 80
