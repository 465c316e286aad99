"""Common parts of parsers of tool calls: emitting pieces, and dropping the space around marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from twofold.text.parsers.base import Arguments, Content, Piece, ToolCall

State: TypeAlias = Callable[[str, int], int]
"""Continues at a position and returns the next one; the same one without a new state waits for more text."""


class PieceWriter:
    """Collects pieces. Drops space around calls, except that before a call if content precedes and follows it."""

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


class StatefulParser:
    """Runs states over a stream. Text that a state does not consume is put before the next text."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._out = PieceWriter()
        self._left = ""

    def push(self, text: str) -> Sequence[Piece]:
        """``SectionParser.push``."""
        text, at = self._left + text, 0
        while True:
            state = self._state
            place = state(text, at)
            if place == at and self._state == state:
                break
            at = place
        self._left = text[at:]
        return self._out.take()


class PlainParser:
    """The parser of completions without tools: all text is content."""

    def push(self, text: str) -> Sequence[Piece]:
        """``SectionParser.push``."""
        return [Content(text)] if text else []

    def flush(self) -> Sequence[Piece]:
        """``SectionParser.flush``."""
        return []
