"""The sections of an answer: what the model thinks, what it says, and which tools it calls.

A parser takes the answer's text as it comes, and gives pieces; joined in order they are the whole answer without the
marks that divided it. A piece leaves as soon as it cannot be the beginning of a mark any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the section in which the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls a tool: the ``index``-th call of the answer, from 0. Its arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON text of a call's arguments; all pieces of call ``index`` together are one JSON object."""

    index: int
    text: str


Piece: TypeAlias = Content | Reasoning | ToolCall | Arguments


class SectionParser(Protocol):
    """Divides one answer. It never raises: what looks like a call and is none is content, as the model wrote it."""

    def push(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain after this text."""
        ...

    def flush(self) -> Sequence[Piece]:
        """What was held back, when nothing follows any more."""
        ...
