"""What every parser of sections has to keep."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

TOOLS: Final = tuple({"type": "function", "function": {"name": name}} for name in ("get", "put"))
Make = Callable[[], SectionParser]


def pieces_of(make: Make, parts: Sequence[str]) -> list[Piece]:
    """The joined pieces of a completion that arrives in ``parts``."""
    parser = make()
    pieces = list(itertools.chain.from_iterable(map(parser.push, parts)))
    return joined([*pieces, *parser.flush()])


def parse_whole(parser: SectionParser, text: str) -> list[Piece]:
    """The joined pieces of a complete text."""
    return pieces_of(lambda: parser, [text])


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, with adjacent ones of the same kind joined."""
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


def check_split(make: Make, parts: Sequence[str]) -> list[Piece]:
    """Any split gives the pieces of the whole text; calls are counted from 0, each before its arguments."""
    whole = "".join(parts)
    pieces = pieces_of(make, [whole])
    assert pieces_of(make, parts) == pieces
    assert pieces_of(make, list(whole)) == pieces
    calls = [piece.index for piece in pieces if isinstance(piece, ToolCall)]
    assert calls == list(range(len(calls)))
    seen = -1
    for piece in pieces:
        if isinstance(piece, ToolCall):
            seen = piece.index
        elif isinstance(piece, Arguments):
            assert piece.index == seen
        else:
            assert piece.text
    return pieces


def sections_of(pieces: Sequence[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls with their arguments."""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            calls.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return reasoning, "".join(piece.text for piece in pieces if isinstance(piece, Content)), calls
