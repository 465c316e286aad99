"""The blocks of a completion: thinking, text and calls of tools.

    pieces of the completion ─► Started, Added …, BlockEnd ─► events of a stream, or whole blocks

White space between sections makes no block: text begins with the first other character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import orjson

from twofold.api.anthropic.replies import ReplyBlock, TextReplyBlock, ThinkingReplyBlock, ToolUseReplyBlock
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, ToolCall

SIGNATURE: Final = "unsigned"
"""In place of Anthropic's signature of a thinking block. Clients send it back; it is not checked."""

BlockKind = Literal["text", "thinking", "tool_use"]


@dataclass(frozen=True, slots=True)
class Started:
    """Block ``index`` begins; ``block`` is empty but for its labels."""

    index: int
    block: ReplyBlock


@dataclass(frozen=True, slots=True)
class Added:
    """More of the text, the thinking, or the JSON text of the input."""

    index: int
    kind: BlockKind
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Block ``index`` is complete."""

    index: int
    kind: BlockKind


Step: TypeAlias = Started | Added | BlockEnd


@dataclass(slots=True)
class BlockCutter:
    """Cuts one completion. ``identity`` is the reply's id, from which the ids of calls are made; ``omits_thinking``
    leaves thinking blocks empty."""

    identity: str
    omits_thinking: bool = False
    _index: int = -1
    _open: BlockKind | None = None
    _blank: list[str] = field(default_factory=list)

    def take(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._text(text)
                case Reasoning(text):
                    yield from self._thinking(text)
                case ToolCall(number, name):
                    identity = f"toolu_{self.identity}{number:03d}"
                    yield from self._start("tool_use", ToolUseReplyBlock(id=identity, name=name, input={}))
                case Arguments(_, text):
                    assert self._open == "tool_use", "arguments follow their call"
                    yield Added(self._index, "tool_use", text)

    def finish(self) -> Iterator[Step]:
        """Ends the last block."""
        if self._open is not None:
            yield BlockEnd(self._index, self._open)
        self._open = None

    def _text(self, text: str) -> Iterator[Step]:
        if self._open != "text":
            self._blank.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._blank)
            yield from self._start("text", TextReplyBlock())
        yield Added(self._index, "text", text)

    def _thinking(self, text: str) -> Iterator[Step]:
        if self._open != "thinking":
            yield from self._start("thinking", ThinkingReplyBlock())
        if not self.omits_thinking:
            yield Added(self._index, "thinking", text)

    def _start(self, kind: BlockKind, block: ReplyBlock) -> Iterator[Step]:
        yield from self.finish()
        self._blank.clear()
        self._index, self._open = self._index + 1, kind
        yield Started(self._index, block)


def whole_blocks(steps: Iterable[Step]) -> list[ReplyBlock]:
    """The blocks of a whole completion, without a call whose arguments are incomplete."""
    blocks: list[ReplyBlock] = []
    texts: list[list[str]] = []
    for step in steps:
        match step:
            case Started(_, block):
                blocks.append(block)
                texts.append([])
            case Added(index, _, text):
                texts[index].append(text)
    return [block for block, parts in zip(blocks, texts, strict=True) if _fill(block, "".join(parts))]


def _fill(block: ReplyBlock, text: str) -> bool:
    """Fills a block; false for a call whose arguments are not an object."""
    match block:
        case TextReplyBlock():
            block.text = text
        case ThinkingReplyBlock():
            block.thinking, block.signature = text, SIGNATURE
        case ToolUseReplyBlock() if text:
            try:
                block.input = orjson.loads(text)
            except orjson.JSONDecodeError:
                return False
            return isinstance(block.input, dict)
    return True
