"""What parsers of tool calls share: pieces put together, and the space around marks left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from twofold.text.parsers.base import Arguments, Content, Piece, SectionParser, ToolCall

State: TypeAlias = Callable[[str, int], int]
"""Reads on from a place of a text and gives the next place; the same place without a new state waits for more."""


class PieceWriter:
    """Collects pieces. Space around calls belongs to their marks; between two texts that before the call stays."""

    def __init__(self) -> None:
        self.calls = 0
        """How many calls there are."""
        self._pieces: list[Piece] = []
        self._space: list[str] = []
        self._said = self._after_call = False

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self, text: str) -> None:
        """Text for the reader."""
        body = text.rstrip()
        if not body:
            self._space += [] if self._after_call else [text]
            return
        if self._after_call:
            text, body = text.lstrip(), body.lstrip()
            self._after_call = False
        self._say("".join(self._space) + body)
        self._space = [text[len(body) :]]

    def call(self, name: str) -> None:
        """Begins the next call."""
        if not self._said:
            self._space.clear()
        self._pieces.append(ToolCall(self.calls, name))
        self.calls += 1
        self._after_call = True

    def arguments(self, text: str) -> None:
        """More arguments of the last call."""
        if text:
            self._pieces.append(Arguments(self.calls - 1, text))

    def end(self) -> None:
        """Nothing follows: space at the end of an answer without calls is the model's own."""
        if not self._after_call:
            self._say("".join(self._space))
        self._space.clear()

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))
            self._said = True


class StatefulParser:
    """Drives states over a stream: what the last state left of a text comes again in front of the next."""

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
    """Of an answer without tools: all of it is content."""

    def push(self, text: str) -> Sequence[Piece]:
        """``SectionParser.push``."""
        return [Content(text)] if text else []

    def flush(self) -> Sequence[Piece]:
        """``SectionParser.flush``."""
        return []


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces with neighbours of one kind as one."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Arguments) and isinstance(last, Arguments) and last.index == piece.index:
            whole[-1] = Arguments(piece.index, last.text + piece.text)
        elif type(piece) is type(last) and not isinstance(piece, Arguments | ToolCall):
            whole[-1] = type(piece)(last.text + piece.text)  # type: ignore[union-attr]
        else:
            whole.append(piece)
    return whole


def parse_whole(parser: SectionParser, text: str) -> list[Piece]:
    """The pieces of a whole answer, neighbours of one kind as one."""
    return joined([*parser.push(text), *parser.flush()])
