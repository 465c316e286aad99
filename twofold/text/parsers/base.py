"""The sections of a completion (reasoning, content, and tool calls), and the base of their parsers.

A parser receives the text of a completion in deltas and emits pieces, which together are the completion without the
marks between its sections. Text is emitted as soon as it cannot be the prefix of a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

_SPACE: Final = re.compile(r"\s*+")


@dataclass(frozen=True, slots=True)
class Content:
    """Text outside the reasoning section and tool calls."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning section."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call, number ``index`` of the completion from 0. Its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON text of a call's arguments; all pieces of call ``index`` together are one JSON object."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | ToolCall | Arguments


class SectionParser(Protocol):
    """Parses one completion. Never raises: text that looks like a call but is not one is content."""

    def push(self, text: str) -> Sequence[Piece]:
        """The pieces that are unambiguous after this text."""
        ...

    def flush(self) -> Sequence[Piece]:
        """The withheld text, at the end of the completion."""
        ...


def skip(text: str, at: int) -> int:
    """The position after the white space at ``at``."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def no_constant(name: str) -> None:
    """``parse_constant`` of a strict ``json.loads``: NaN and the infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


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
        if found:
            return found.start(), found[0]
        for place in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[place] in self._firsts and any(mark.startswith(text[place:]) for mark in self._marks):
                return place, ""
        return len(text), ""


State: TypeAlias = Callable[[str, int], int]
"""Reads text from a position; returns the next one, or the same one, in the same state, to wait for more text."""


class PieceWriter:
    """Collects pieces. Drops space around calls, but keeps the space before a call that lies between content."""

    def __init__(self) -> None:
        self.calls = 0
        """The number of calls."""
        self._pieces: list[Piece] = []
        self._space: list[str] = []
        self._has_content = self._after_call = False

    def take(self) -> list[Piece]:
        """The pieces since the previous call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self, text: str) -> None:
        """Adds content."""
        body = text.rstrip()
        if not body:
            self._space += [] if self._after_call else [text]
            return
        if self._after_call:
            text, body = text.lstrip(), body.lstrip()
            self._after_call = False
        self._emit("".join(self._space) + body)
        self._space = [text[len(body) :]]

    def call(self, name: str) -> None:
        """Begins the next call."""
        if not self._has_content:
            self._space.clear()
        self._pieces.append(ToolCall(self.calls, name))
        self.calls += 1
        self._after_call = True

    def arguments(self, text: str) -> None:
        """Adds arguments of the last call."""
        if text:
            self._pieces.append(Arguments(self.calls - 1, text))

    def end(self) -> None:
        """Ends the completion. Without calls, space at its end is kept."""
        if not self._after_call:
            self._emit("".join(self._space))
        self._space.clear()

    def _emit(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))
            self._has_content = True


class PlainParser:
    """``SectionParser`` of completions without tools: all text is content."""

    def push(self, text: str) -> Sequence[Piece]:
        return [Content(text)] if text else []

    def flush(self) -> Sequence[Piece]:
        return []
