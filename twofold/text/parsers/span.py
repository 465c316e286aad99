"""Where a bracket closes in a text that comes in pieces, with texts in which brackets mean nothing."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[^\"'\\()\[\]{}]*+")
_TEXT: Final = re.compile(r"[^\"'\\]++|.", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


class PythonSpan:
    """Reads up to the bracket that closes the first one; quotes are Python's, single or triple."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._mark = ""
        self._quote = ""
        self._run = 0
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Reads on; the place behind what belongs to the span."""
        while at < len(text) and not self.done:
            if not self._quote and not self._run:
                at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
            if at < len(text):
                at = self._one(text, at)
        return at

    def _one(self, text: str, at: int) -> int:
        character = text[at]
        if self._quote:
            return self._within(text, at)
        if self._run:
            return self._opening(character, at)
        if character in "\"'":
            self._mark, self._run = character, 1
        elif character in _OPEN:
            self._depth += 1
        elif character in _CLOSE:
            self._depth -= 1
            self.done = self._depth <= 0
        return at + 1

    def _opening(self, character: str, at: int) -> int:
        """After one or two quotes: an empty text, a text, or a third quote."""
        if character == self._mark:
            self._run += 1
            if self._run == 3:
                self._quote, self._run = self._mark * 3, 0
            return at + 1
        if self._run == 1:
            self._quote = self._mark
        self._run = 0
        return at

    def _within(self, text: str, at: int) -> int:
        character = text[at]
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped, self._run = True, 0
        elif character == self._mark:
            self._run += 1
            if self._run == len(self._quote):
                self._quote, self._run = "", 0
        else:
            self._run = 0
            return _TEXT.match(text, at).end()  # type: ignore[union-attr]
        return at + 1


class MarkedSpan:
    """Reads up to the bracket that closes the first one; texts stand between two equal marks."""

    def __init__(self, mark: str) -> None:
        self.done = False
        self._pattern = re.compile(f"[{{}}]|{re.escape(mark)}")
        self._mark = mark
        self._depth = 0
        self._inside = False

    def read(self, text: str, at: int) -> int:
        """Reads on; what may be the beginning of a mark is left for the next time."""
        while not self.done:
            found = self._pattern.search(text, at)
            if found is None:
                return self._open_end(text, at)
            at = found.end()
            self._take(found[0])
        return at

    def _take(self, found: str) -> None:
        if found == self._mark:
            self._inside = not self._inside
        elif not self._inside:
            self._depth += 1 if found == "{" else -1
            self.done = self._depth <= 0

    def _open_end(self, text: str, at: int) -> int:
        for place in range(max(at, len(text) - len(self._mark) + 1), len(text)):
            if self._mark.startswith(text[place:]):
                return place
        return len(text)
