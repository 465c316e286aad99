"""The sections of a completion: reasoning, content, and tool calls.

A parser receives the text of a completion in deltas and emits pieces, which together are the completion without the
marks between its sections. Text is emitted as soon as it cannot be the prefix of a mark.
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
