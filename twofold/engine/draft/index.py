"""Where the last tokens of a text occurred before.

``TokenIndex`` links each pair of adjacent tokens to its previous occurrence, as the hash chains of LZ77 compressors do
(Deutsch, RFC 1951, section 4): adding a token takes constant time, and a search compares at most CANDIDATES places.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

MIN_MATCH: Final = 2
"""Tokens that must agree: the index holds pairs."""
MAX_MATCH: Final = 16
"""A longer match counts as one of this length."""
CANDIDATES: Final = 12
"""Places that a search compares, the latest ones."""
SHIFT: Final = 22
"""Bits of a token id in a pair."""


class Match(NamedTuple):
    """The last ``length`` tokens of a text occurred before; ``follows`` is the position after that occurrence."""

    length: int
    follows: int


NO_MATCH: Final = Match(0, 0)


class TokenIndex:
    """A growing text and the places of its pairs. ``tokens`` is the text."""

    __slots__ = ("_last", "_previous", "tokens")

    def __init__(self) -> None:
        self.tokens = array("i")
        self._last: dict[int, int] = {}
        self._previous = array("i")

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        position, places, previous = len(self.tokens), self._last, self._previous
        before = self.tokens[-1] if position else -1
        self.tokens.extend(tokens)
        for token in tokens:
            pair = before << SHIFT | token
            previous.append(places.get(pair, -1))
            places[pair] = position
            before = token
            position += 1

    def longest(self, text: Sequence[int], least: int = MIN_MATCH) -> Match:
        """The longest match of the end of ``text``, the latest one among equals; NO_MATCH below ``least`` tokens.

        ``text`` may be this index's own text: its end itself does not count.
        """
        size = len(text)
        if size < MIN_MATCH:
            return NO_MATCH
        own, previous = self.tokens, self._previous
        place = self._last.get(text[size - 2] << SHIFT | text[size - 1], -1)
        if place >= 0 and place == len(own) - 1:  # nothing follows it
            place = previous[place]
        found, longest = -1, least - 1
        for _ in range(CANDIDATES):
            if place < longest or size <= longest or longest >= MAX_MATCH:
                break  # earlier places have fewer tokens before them
            if own[place - longest] == text[size - 1 - longest]:  # otherwise it cannot be longer
                length, most = MIN_MATCH, min(MAX_MATCH, place + 1, size)
                while length < most and own[place - length] == text[size - 1 - length]:
                    length += 1
                if length > longest:
                    found, longest = place, length
            place = previous[place]
        return Match(longest, found + 1) if found >= 0 else NO_MATCH


class PastTexts:
    """Completions of the past, at most ``most`` tokens: the oldest half is forgotten at once."""

    def __init__(self, most: int) -> None:
        self._half = max(most // 2, 1)
        self._new = TokenIndex()
        self._old = TokenIndex()

    def __len__(self) -> int:
        return len(self._new.tokens) + len(self._old.tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Adds a completion, of which at most half of the maximum is kept."""
        kept = tokens[: self._half]
        if len(self._new.tokens) + len(kept) > self._half:
            self._old, self._new = self._new, TokenIndex()
        self._new.extend(kept)

    def longest(self, text: Sequence[int], least: int) -> tuple[Match, array[int]]:
        """The longest match of the end of ``text``, and the text in which it is."""
        new, old = self._new.longest(text, least), self._old.longest(text, least)
        return (new, self._new.tokens) if new.length >= old.length else (old, self._old.tokens)
