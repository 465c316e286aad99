"""Control tokens in text: where they stand, and how to keep untrusted text from holding any.

Control tokens are found here and not in the encoder, so that one encoder serves trusted and untrusted text, and a
vocabulary with thousands of them starts quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from twofold.core.errors import TemplateError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode noncharacters, which no text needs."""


BLANKS = re.compile(r"\s*")
AHEAD = 4
"""Characters of a token that are compared before it is looked up."""
WINDOW = 1 << 16
"""Characters that are searched in one go: a search holds the interpreter."""


@dataclass(frozen=True)
class Segment:
    """A stretch of plain text, or one control token (``token`` is its id)."""

    text: str
    token: int | None = None


class SpecialTokens:
    """Finds the longest control token at each place of a text, from left to right.

    ``ids`` maps texts to ids; after those in ``eats_space`` (ids) following white space belongs to the token.
    """

    def __init__(self, ids: Mapping[str, int], eats_space: frozenset[int] = frozenset()) -> None:
        self._ids = dict(ids)
        self._eats_space = eats_space

    @cached_property
    def _first(self) -> re.Pattern[str] | None:
        """Finds where a token may begin: the first character of one, with the next few ahead of it."""
        rests: dict[str, set[str]] = {}
        for text in self._ids:
            rests.setdefault(text[0], set()).add(re.escape(text[1:AHEAD]))
        starts = [f"{re.escape(first)}(?={'|'.join(sorted(rest))})" for first, rest in sorted(rests.items())]
        return re.compile("|".join(starts)) if starts else None

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(text) for text in self._ids}, reverse=True)

    @property
    def texts(self) -> frozenset[str]:
        """How the control tokens are written."""
        return frozenset(self._ids)

    def id_of(self, text: str) -> int | None:
        """Id of the control token written ``text``."""
        return self._ids.get(text)

    def split(self, text: str) -> Iterator[Segment]:
        """The text in order, without empty segments."""
        done = 0
        for start, end, token in self._occurrences(text):
            if start > done:
                yield Segment(text[done:start])
            yield Segment(text[start:end], token)
            done = end + self._eaten(text, end) if token in self._eats_space else end
        if done < len(text):
            yield Segment(text[done:])

    def _occurrences(self, text: str) -> Iterator[tuple[int, int, int]]:
        if self._first is None:
            return
        done = 0
        for window in range(0, len(text), WINDOW):
            for match in self._first.finditer(text[window : window + WINDOW + AHEAD]):
                start = window + match.start()
                if done <= start < window + WINDOW and (found := self._at(text, start)) is not None:
                    done = start + found[0]
                    yield start, done, found[1]

    def _at(self, text: str, start: int) -> tuple[int, int] | None:
        for length in self._lengths:
            token = self._ids.get(text[start : start + length])
            if token is not None and start + length <= len(text):
                return length, token
        return None

    @staticmethod
    def _eaten(text: str, start: int) -> int:
        blanks = BLANKS.match(text, start)
        return 0 if blanks is None else blanks.end() - start

    def holds(self, text: str) -> bool:
        """Whether any control token stands in ``text``."""
        return next(self._occurrences(text), None) is not None

    def broken(self, text: str, mark: str) -> str:
        """``text`` with ``mark`` after the first character of each control token, which then is one no longer."""
        places = [start + 1 for start, _, _ in self._occurrences(text)]
        return mark.join(text[begin:end] for begin, end in pairwise([0, *places, len(text)]))


def unused_mark(text: str) -> str:
    """A character that does not occur in ``text``. Raises TemplateError where there is none left."""
    for mark in _MARKS:
        if mark not in text:
            return mark
    raise TemplateError(
        "The messages hold every Unicode noncharacter, so control tokens in them cannot be told apart.",
        hint="Remove U+FDD0 to U+FDEF from the messages.",
    )
