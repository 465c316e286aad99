"""Anthropic's streamed reply, and the blocks of a completion: thinking, text and calls of tools.

    message_start (content_block_start content_block_delta … content_block_stop) … message_delta message_stop

White space alone makes no block; it is put before the text that follows it. ``message_start`` is sent once it is known
how much of the prompt came from a cache; until then comments keep the connection open. Final token counts are in
``message_delta``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType, structs

from twofold.api.anthropic.errors import AnthropicDialect, AnthropicError
from twofold.api.anthropic.replies import (
    MessageReply,
    MessageUsage,
    ReplyBlock,
    ReplyDiagnostics,
    StopReason,
    TextReplyBlock,
    ThinkingReplyBlock,
    ToolUseReplyBlock,
    message_usage,
    running_usage,
    stop_of,
)
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.completion import CacheUsage, CompletionReader, ParsedCall
from twofold.core.errors import TwofoldError
from twofold.core.forecast import RequestProgress
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

SIGNATURE: Final = "unsigned"
"""Sent instead of Anthropic's signature of a thinking block. Clients send it back; it is not checked."""


class MessageStart(ReplyObject, kw_only=True):
    """The message without content."""

    type: Literal["message_start"] = "message_start"
    message: MessageReply


class MessagePing(ReplyObject, kw_only=True):
    """Keeps the connection open."""

    type: Literal["ping"] = "ping"


class ContentBlockStart(ReplyObject, kw_only=True):
    """A block begins."""

    type: Literal["content_block_start"] = "content_block_start"
    index: NonNegativeInt
    content_block: ReplyBlock


class BlockTextDelta(ReplyObject, kw_only=True):
    """More text."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class BlockThinkingDelta(ReplyObject, kw_only=True):
    """More thinking."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class BlockSignatureDelta(ReplyObject, kw_only=True):
    """The signature of a thinking block."""

    type: Literal["signature_delta"] = "signature_delta"
    signature: str


class BlockInputDelta(ReplyObject, kw_only=True):
    """More of the input's JSON text."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


BlockDelta: TypeAlias = BlockTextDelta | BlockThinkingDelta | BlockSignatureDelta | BlockInputDelta


class ContentBlockDelta(ReplyObject, kw_only=True):
    """More of a block."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: NonNegativeInt
    delta: BlockDelta


class ContentBlockStop(ReplyObject, kw_only=True):
    """A block is complete."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: NonNegativeInt


class MessageEnding(ReplyObject):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(ReplyObject, kw_only=True):
    """Why the message ended, and the tokens used."""

    type: Literal["message_delta"] = "message_delta"
    delta: MessageEnding
    usage: MessageUsage
    twofold: Explanation | UnsetType = UNSET


class MessageStop(ReplyObject, kw_only=True):
    """The end of the stream."""

    type: Literal["message_stop"] = "message_stop"


MessageEvent: TypeAlias = (
    MessageStart
    | MessagePing
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)


class MessageBlocks:
    """The blocks of a completion, and the events by which they grow.

    blocks  the complete blocks, except calls whose arguments are incomplete

    ``identity`` is the id of the reply; ids of calls are made from it. ``omits_thinking`` empties thinking blocks.
    """

    def __init__(self, identity: str, *, omits_thinking: bool) -> None:
        self.blocks: list[ReplyBlock] = []
        self._identity = identity
        self._omits_thinking = omits_thinking
        self._index = -1
        self._open: ReplyBlock | None = None
        self._texts: list[str] = []
        self._blank = ""

    def take(self, pieces: Iterable[Piece]) -> Iterator[MessageEvent]:
        """The events of these pieces."""
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._text(text)
                case Reasoning(text):
                    if not isinstance(self._open, ThinkingReplyBlock):
                        yield from self._start(ThinkingReplyBlock())
                    if not self._omits_thinking:
                        yield self._add(BlockThinkingDelta(thinking=text), text)
                case ToolCall(number, name):
                    call_id = f"toolu_{self._identity}{number:03d}"
                    yield from self._start(ToolUseReplyBlock(id=call_id, name=name, input={}))
                case Arguments(_, text):
                    assert isinstance(self._open, ToolUseReplyBlock), "arguments follow their call"
                    yield self._add(BlockInputDelta(partial_json=text), text)

    def finish(self) -> Iterator[MessageEvent]:
        """Ends the last block."""
        if self._open is None:
            return
        if isinstance(self._open, ThinkingReplyBlock):
            yield ContentBlockDelta(index=self._index, delta=BlockSignatureDelta(signature=SIGNATURE))
        yield ContentBlockStop(index=self._index)
        if (block := _filled(self._open, "".join(self._texts))) is not None:
            self.blocks.append(block)
        self._open = None

    def _text(self, text: str) -> Iterator[MessageEvent]:
        if not isinstance(self._open, TextReplyBlock):
            self._blank += text
            if not text or text.isspace():
                return
            text = self._blank
            yield from self._start(TextReplyBlock())
        yield self._add(BlockTextDelta(text=text), text)

    def _start(self, block: ReplyBlock) -> Iterator[MessageEvent]:
        yield from self.finish()
        self._index, self._open, self._texts, self._blank = self._index + 1, block, [], ""
        yield ContentBlockStart(index=self._index, content_block=block)

    def _add(self, delta: BlockDelta, text: str) -> ContentBlockDelta:
        self._texts.append(text)
        return ContentBlockDelta(index=self._index, delta=delta)


def _filled(block: ReplyBlock, text: str) -> ReplyBlock | None:
    """The whole block; None for a call whose arguments are not an object."""
    match block:
        case TextReplyBlock():
            return TextReplyBlock(text=text)
        case ThinkingReplyBlock():
            return ThinkingReplyBlock(thinking=text, signature=SIGNATURE)
    arguments = ParsedCall(block.name, text).parsed_arguments()
    return None if arguments is None else structs.replace(block, input=arguments)


def event(data: MessageEvent) -> bytes:
    """A server-sent event, named by the type of its data."""
    return b"event: %b\ndata: %b\n\n" % (data.type.encode(), encode(data))


PING: Final = event(MessagePing())
KEEP_ALIVE: Final = b": keep-alive\n\n"


class MessageStreamer:
    """``Streamer`` of a message. With ``max_tokens`` 0 the message has no content."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        *,
        max_tokens: int,
        omits_thinking: bool,
        diagnostics: ReplyDiagnostics | UnsetType,
    ) -> None:
        self._head = head
        self._model = model
        self._max_tokens = max_tokens
        self._diagnostics = diagnostics
        self._reader = CompletionReader(parser)
        self._blocks = MessageBlocks(head.id, omits_thinking=omits_thinking)
        self._begun = False

    @property
    def keep_alive(self) -> bytes:
        """A ping; before ``message_start``, which is the first event, a comment."""
        return PING if self._begun else KEEP_ALIVE

    def open(self) -> bytes:
        return b""

    def progress(self, progress: RequestProgress) -> bytes:
        """``ShowsProgress``: the message starts when the request is admitted, and thereby knows its cached tokens."""
        return self._begin(progress.cached) if progress.ahead is None else b""

    def _begin(self, cached: int) -> bytes:
        """The first events of the message, once; ``cached`` tokens of its prompt came from a cache."""
        if self._begun:
            return b""
        self._begun = True
        prompt = sum(self._head.prompt_tokens)
        used = running_usage(self._head, CacheUsage(prompt=prompt, read=min(cached, prompt)))
        message = MessageReply(
            id=f"msg_{self._head.id}", model=self._head.model, usage=used, diagnostics=self._diagnostics
        )
        return event(MessageStart(message=message)) + PING

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a message is one job
        begun = self._begin(delta.cached or 0)
        if not self._max_tokens:
            return begun
        return begun + b"".join(map(event, self._blocks.take(self._reader.take(delta))))

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        (output,) = outputs
        begun = self._begin(output.metrics.cached_tokens)
        reason, sequence = stop_of(output, self._model, max_tokens=self._max_tokens, called=bool(self._reader.calls))
        ending = MessageDelta(
            delta=MessageEnding(reason, sequence),
            usage=message_usage(self._head, output, self._model, max_tokens=self._max_tokens),
            twofold=extra,
        )
        return begun + b"".join(map(event, (*self._blocks.finish(), ending, MessageStop())))

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return event(AnthropicDialect().error(error, request_id))
