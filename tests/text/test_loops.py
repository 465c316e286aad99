"""Completions that repeat themselves: which repetition is found, when, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.core.record import Repetition
from twofold.text.loops import MAX_PERIOD, MIN_TIMES, MIN_TOKENS, LoopFinder


def found(tokens: Iterable[int]) -> tuple[int | None, Repetition | None]:
    """How many tokens it took to find the first repetition, and the longest one."""
    finder, first = LoopFinder(), None
    for count, token in enumerate(tokens, 1):
        if finder.push(token) and first is None:
            first = count
    return first, finder.longest


def by_definition(tokens: Sequence[int]) -> tuple[int, int] | None:
    """How many tokens it takes until they end in a repetition, and its smallest period: by comparing all of them."""
    for count in range(1, len(tokens) + 1):
        for period in range(1, MAX_PERIOD + 1):
            run = 0
            while count - run - period > 0 and tokens[count - run - 1] == tokens[count - run - period - 1]:
                run += 1
            if run + period >= max(MIN_TOKENS, MIN_TIMES * period):
                return count, period
    return None


PARTS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


@given(st.lists(st.integers(0, 3), max_size=40), PARTS, st.integers(0, 12), st.lists(st.integers(0, 3), max_size=40))
def test_the_first_repetition_is_found_by_its_last_token(
    before: list[int], part: list[int], times: int, after: list[int]
) -> None:
    tokens = [*before, *part * times, *after]
    expected = by_definition(tokens)
    finder = LoopFinder()
    first = next((count for count, token in enumerate(tokens, 1) if finder.push(token)), None)
    assert first == (None if expected is None else expected[0])
    if expected is not None:
        assert finder.longest is not None
        assert finder.longest.tokens == expected[1]


@pytest.mark.parametrize(("period", "needed"), [(1, 64), (2, 64), (16, 64), (17, 68), (41, 164), (256, 1024)])
def test_a_repetition_is_counted(period: int, needed: int) -> None:
    part = list(range(period))
    first, longest = found([-1, *part * 100, -2])
    assert (first, longest) == (1 + needed, Repetition(period, 100))


def test_longer_parts_and_fewer_times_are_none() -> None:
    assert found(list(range(MAX_PERIOD + 1)) * 10) == (None, None)
    assert found(list(range(40)) * 3) == (None, None)
    assert found([7] * (MIN_TOKENS - 1)) == (None, None)


def test_the_longest_of_several_is_reported() -> None:
    short, long = [1, 2, 3] * 30, list(range(10, 30)) * 20
    for tokens in ([*short, 0, *long, 0], [*long, 0, *short, 0]):
        assert found(tokens)[1] == Repetition(20, 20)


@pytest.mark.parametrize(
    "tokens",
    [
        repeat(7, 5000),
        chain.from_iterable([1] * 63 + [place] for place in range(2, 80)),
        (place % 300 for place in range(5000)),
        (place * place % 251 for place in range(5000)),
    ],
    ids=["one token", "almost", "too long", "many"],
)
def test_the_cost_of_a_token_is_bounded(tokens: Iterable[int]) -> None:
    """In operations and in memory, however long the text is."""
    finder = LoopFinder()
    for token in tokens:
        inside = finder.push(token)
        assert len(finder._runs) <= (0 if inside else MAX_PERIOD)  # what the token cost
        assert sum(map(len, finder._places.values())) == len(finder._recent) <= MAX_PERIOD
