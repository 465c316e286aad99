"""Matches are those of a search through the whole text."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.engine.draft.index import CANDIDATES, MAX_MATCH, MIN_MATCH, NO_MATCH, Match, PastTexts, TokenIndex

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def searched(own: list[int], text: list[int], least: int) -> Match:
    """The longest match that ends at one of the latest CANDIDATES places of the last pair, and is followed by a
    token."""
    ends = [end for end in range(1, len(own) - 1) if own[end - 1 : end + 1] == text[-2:]]
    found = NO_MATCH
    for end in ends[: -CANDIDATES - 1 : -1]:
        length = MIN_MATCH
        while length < min(MAX_MATCH, end + 1, len(text)) and own[end - length] == text[-1 - length]:
            length += 1
        if length >= least and length > found.length:
            found = Match(length, end + 1)
    return found


@settings(max_examples=300)
@given(st.lists(TEXTS, max_size=4), st.integers(MIN_MATCH, 6))
def test_the_longest_match_of_a_text_in_itself(pieces: list[list[int]], least: int) -> None:
    index = TokenIndex()
    for piece in pieces:
        index.extend(piece)
    own = [token for piece in pieces for token in piece]
    assert list(index.tokens) == own
    expected = searched(own, own, least) if len(own) >= MIN_MATCH else NO_MATCH
    assert index.longest(index.tokens, least) == expected


@settings(max_examples=200)
@given(TEXTS, TEXTS)
def test_the_longest_match_in_another_text(own: list[int], text: list[int]) -> None:
    index = TokenIndex()
    index.extend(own)
    expected = searched(own, text, MIN_MATCH) if len(text) >= MIN_MATCH else NO_MATCH
    assert index.longest(text) == expected


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=30), st.integers(2, 40))
def test_past_texts_are_bounded_and_the_last_one_is_found(texts: list[list[int]], most: int) -> None:
    past = PastTexts(most)
    for text in texts:
        past.add(text)
        assert len(past) <= most
        kept = text[: most // 2]
        if len(kept) >= 3:
            match, where = past.longest(array("i", kept[:-1][-2:]), MIN_MATCH)
            assert match.length == MIN_MATCH
            assert list(where[match.follows - 2 : match.follows]) == kept[-3:-1]
