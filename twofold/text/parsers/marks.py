"""Marks in a text that comes in pieces: what is certainly none may leave, what may become one is held."""

from __future__ import annotations

import re
from collections.abc import Iterable


class MarkFinder:
    """Finds the first of ``marks``, of which none begins another. Time is linear in the text."""

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(marks)
        self._pattern = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None
        self._firsts = frozenset(mark[0] for mark in self._marks)
        self._longest = max(map(len, self._marks), default=0)

    def find(self, text: str, at: int = 0) -> tuple[int, str]:
        """Where the first mark from ``at`` on begins, and the mark.

        Without one the mark is empty, and the place is where the beginning of one might stand at the text's end.
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
