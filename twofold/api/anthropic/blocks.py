"""The blocks of an answer: thinking, text and calls of tools, one after another, as they come.

    pieces of the answer ─► Started, Added …, Ended ─► events of a stream, or whole blocks

White space between sections is no block: text begins with the first character that is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import orjson

from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, ToolCall

SIGNATURE: Final = "unsigned"
"""Stands where Anthropic signs what was thought. Clients hand it back as it is; nobody checks it here."""

BlockKind = Literal["text", "thinking", "tool_use"]


@dataclass(frozen=True, slots=True)
class Started:
    """Block ``index`` begins; ``block`` is what it holds so far."""

    index: int
    block: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Added:
    """More of the text, the thought, or the JSON text of the input."""

    index: int
    kind: BlockKind
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Nothing follows in this block."""

    index: int
    kind: BlockKind


Step: TypeAlias = Started | Added | BlockEnd


@dataclass(slots=True)
class BlockCutter:
    """Cuts one answer. ``identity`` is the reply's, of which those of calls are made; ``omits_thinking`` leaves
    away what was thought, and tells only that something was."""

    identity: str
    omits_thinking: bool = False
    _index: int = -1
    _open: BlockKind | None = None
    _blank: list[str] = field(default_factory=list)

    def take(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._said(text)
                case Reasoning(text):
                    yield from self._thought(text)
                case ToolCall(number, name):
                    block = {"type": "tool_use", "id": f"toolu_{self.identity}{number:03d}", "name": name, "input": {}}
                    yield from self._start("tool_use", block)
                case Arguments(_, text):
                    assert self._open == "tool_use", "arguments follow their call"
                    yield Added(self._index, "tool_use", text)

    def finish(self) -> Iterator[Step]:
        """Ends the last block."""
        if self._open is not None:
            yield BlockEnd(self._index, self._open)
        self._open = None

    def _said(self, text: str) -> Iterator[Step]:
        if self._open != "text":
            self._blank.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._blank)
            yield from self._start("text", {"type": "text", "text": ""})
        yield Added(self._index, "text", text)

    def _thought(self, text: str) -> Iterator[Step]:
        if self._open != "thinking":
            yield from self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if not self.omits_thinking:
            yield Added(self._index, "thinking", text)

    def _start(self, kind: BlockKind, block: dict[str, Any]) -> Iterator[Step]:
        yield from self.finish()
        self._blank.clear()
        self._index, self._open = self._index + 1, kind
        yield Started(self._index, block)


def whole_blocks(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """The blocks of a whole answer. A call that was cut off in the middle is none."""
    blocks: list[dict[str, Any]] = []
    texts: list[list[str]] = []
    for step in steps:
        match step:
            case Started(_, block):
                blocks.append(block)
                texts.append([])
            case Added(index, _, text):
                texts[index].append(text)
    filled = (_filled(block, "".join(parts)) for block, parts in zip(blocks, texts, strict=True))
    return [block for block in filled if block is not None]


def _filled(block: dict[str, Any], text: str) -> dict[str, Any] | None:
    match block["type"]:
        case "text":
            return {**block, "text": text}
        case "thinking":
            return {**block, "thinking": text, "signature": SIGNATURE}
    if not text:
        return block
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return {**block, "input": given} if isinstance(given, dict) else None
