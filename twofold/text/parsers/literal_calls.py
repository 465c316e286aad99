"""Calls whose arguments are literals, which are read, and emitted, as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from twofold.text.parsers.family import dumped
from twofold.text.parsers.literals import NotLiteralError
from twofold.text.parsers.marks import MarkFinder
from twofold.text.parsers.pieces import PieceWriter

MAX_NAME: Final = 128
MAX_CALL: Final = 1 << 20
_PLAIN: Final = re.compile(r"[^\"'\\()\[\]{}]*+")
_TEXT: Final = re.compile(r"[^\"'\\]++|.", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


class PythonSpan:
    """Finds the bracket that closes the first one; strings are Python's, in single or triple quotes."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._mark = ""
        self._quote = ""
        self._run = 0
        self._escaped = False

    def read(self, text: str, at: int) -> int:
        """Reads on from ``text[at]``. Returns the position after what belongs to the span."""
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
        """After one or two quotes: an empty string, a string, or a third quote."""
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
    """Finds the brace that closes the first one; strings stand between two equal marks."""

    def __init__(self, mark: str) -> None:
        self.done = False
        self._finder = MarkFinder(("{", "}", mark))
        self._mark = mark
        self._depth = 0
        self._inside = False

    def read(self, text: str, at: int) -> int:
        """As ``PythonSpan.read``; a possible start of a mark at the end of the text is not consumed."""
        while not self.done:
            at, found = self._finder.find(text, at)
            if not found:
                break
            at += len(found)
            if found == self._mark:
                self._inside = not self._inside
            elif not self._inside:
                self._depth += 1 if found == "{" else -1
                self.done = self._depth <= 0
        return at


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """How a call is written.

    head       matches the characters before the arguments
    bracket    the first character of the arguments
    name       the tool's name in a head; None if the head is not one of a call
    span       makes a reader that finds the end of the arguments
    arguments  reads the whole arguments; raises NotLiteralError
    """

    head: re.Pattern[str]
    bracket: str
    name: Callable[[str], str | None]
    span: Callable[[], PythonSpan | MarkedSpan]
    arguments: Callable[[str], Any]


class LiteralCallReader:
    """A ``CallReader``. ``known`` are the names that a call may have; None allows all."""

    def __init__(self, syntax: LiteralSyntax, out: PieceWriter, known: frozenset[str] | None) -> None:
        self._syntax = syntax
        self._out = out
        self._known = known
        self._head = self._name = ""
        self._span: PythonSpan | MarkedSpan | None = None
        self._read: list[str] = []
        self._length = 0
        self.done = self.broken = self.left = False

    def read(self, text: str, at: int) -> int:
        """``CallReader.read``."""
        if self._span is None:
            at = self._read_head(text, at)
        if self._span is None or self.broken:
            return at
        end = self._span.read(text, at)
        self._read.append(text[at:end])
        self._length += end - at
        if self._span.done:
            self._emit("".join(self._read))
        self.broken = self.broken or self._length > MAX_CALL
        return end

    def end(self) -> None:
        """``CallReader.end``: an incomplete call is not a call."""

    def _read_head(self, text: str, at: int) -> int:
        end = self._syntax.head.match(text, at).end()  # type: ignore[union-attr]
        self._head += text[at:end][: MAX_NAME + 1]
        if len(self._head) > MAX_NAME:
            self.broken = True
        elif end < len(text):
            name = self._syntax.name(self._head)
            known = self._known is None or name in self._known
            self.broken = text[end] != self._syntax.bracket or name is None or not known
            self._name, self._span = name or "", self._syntax.span()
        return end

    def _emit(self, text: str) -> None:
        try:
            arguments = self._syntax.arguments(text)
        except NotLiteralError:
            self.broken = True
            return
        self._out.call(self._name)
        self._out.arguments(dumped(arguments))
        self.done = self.left = True
