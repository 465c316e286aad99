"""Finds marks in a stream of text; a possible prefix of a mark at its end is withheld."""

from __future__ import annotations

import re
from collections.abc import Iterable


class MarkFinder:
    """Finds the first of ``marks``; no mark may be a prefix of another. Time is linear in the text."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(marks)
        self._pattern = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None
        self._firsts = frozenset(mark[0] for mark in self._marks)
        self._longest = max(map(len, self._marks), default=0)

    def find(self, text: str, at: int = 0) -> tuple[int, str]:
        """The position of the first mark from ``at`` on, and the mark.

        Without one the mark is empty, and the position is that of a possible prefix of a mark at the text's end.
        """
        found = self._pattern.search(text, at) if self._pattern else None
        return (found.start(), found[0]) if found else (self._open_end(text, at), "")

    def _open_end(self, text: str, at: int) -> int:
        for place in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[place] in self._firsts and self._begins(text[place:]):
                return place
        return len(text)

    def _begins(self, tail: str) -> bool:
        return any(mark.startswith(tail) for mark in self._marks)
