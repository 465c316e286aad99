"""Anthropic's streamed reply: named server-sent events.

    message_start (content_block_start content_block_delta … content_block_stop) … message_delta message_stop

Final token counts are in ``message_delta``: earlier it is not known how much of the prompt came from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType

from twofold.api.answers import AnswerReader, CacheUsage
from twofold.api.anthropic.blocks import SIGNATURE, Added, BlockCutter, BlockEnd, BlockKind, Started, Step
from twofold.api.anthropic.errors import AnthropicDialect, AnthropicError
from twofold.api.anthropic.replies import (
    MessageReply,
    MessageUsage,
    ReplyBlock,
    ReplyDiagnostics,
    StopReason,
    message_usage,
    running_usage,
    stop_of,
)
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import SectionParser


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


class MessageStreamer:
    """``Streamer`` of a message. ``most`` is max_tokens; with 0 the message has no content."""

    keep_alive: bytes

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        *,
        most: int,
        omits_thinking: bool,
        diagnostics: ReplyDiagnostics | UnsetType,
    ) -> None:
        self.keep_alive = event(MessagePing())
        self._head = head
        self._model = model
        self._most = most
        self._diagnostics = diagnostics
        self._reader = AnswerReader(parser)
        self._cutter = BlockCutter(head.id, omits_thinking)

    def open(self) -> bytes:
        used = running_usage(self._head, CacheUsage(prompt=sum(self._head.prompt_tokens)))
        message = MessageReply(
            id=f"msg_{self._head.id}", model=self._head.model, usage=used, diagnostics=self._diagnostics
        )
        return event(MessageStart(message=message)) + self.keep_alive

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a message is one job
        if not self._most:
            return b""
        pieces = self._reader.take(delta)
        return _events(self._cutter.take(pieces)) if pieces else b""

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        (output,) = outputs
        reason, sequence = stop_of(output, self._model, most=self._most, called=bool(self._reader.calls))
        ending = MessageDelta(
            delta=MessageEnding(reason, sequence),
            usage=message_usage(self._head, output, self._model, answered=self._most > 0),
            twofold=extra,
        )
        return _events(self._cutter.finish()) + event(ending) + event(MessageStop())

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return event(AnthropicDialect().error(error, request_id))


def event(data: MessageEvent) -> bytes:
    """A server-sent event, named as its data's type."""
    return b"event: %b\ndata: %b\n\n" % (data.type.encode(), encode(data))


def _events(steps: Iterable[Step]) -> bytes:
    return b"".join(map(_event_of, steps))


def _event_of(step: Step) -> bytes:
    match step:
        case Added(index, kind, text):
            return event(ContentBlockDelta(index=index, delta=_delta(kind, text)))
        case Started(index, block):
            return event(ContentBlockStart(index=index, content_block=block))
        case BlockEnd(index, kind):
            signature = ContentBlockDelta(index=index, delta=BlockSignatureDelta(signature=SIGNATURE))
            return (event(signature) if kind == "thinking" else b"") + event(ContentBlockStop(index=index))


def _delta(kind: BlockKind, text: str) -> BlockDelta:
    match kind:
        case "text":
            return BlockTextDelta(text=text)
        case "thinking":
            return BlockThinkingDelta(thinking=text)
        case "tool_use":
            return BlockInputDelta(partial_json=text)
