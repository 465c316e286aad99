"""Anthropic's reply as it comes: named server-sent events.

    message_start (content_block_start content_block_delta … content_block_stop) … message_delta message_stop

What was spent is in ``message_delta``: only there is known how much of the prompt came from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from twofold.api.answers import AnswerReader, CacheUsage
from twofold.api.anthropic.blocks import SIGNATURE, Added, BlockCutter, BlockEnd, BlockKind, Started, Step
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.anthropic.replies import message, running_usage, stop_of, usage
from twofold.api.base import ModelFacts, ReplyHead
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import SectionParser

DELTAS: Final[dict[BlockKind, tuple[bytes, bytes]]] = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}
"""The type of a delta and the field that it adds to."""


class MessageStreamer:
    """``Streamer`` of a message. ``most`` is max_tokens; with 0 nothing of the answer is told."""

    keep_alive: bytes

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        *,
        most: int,
        omits_thinking: bool,
        extra: Mapping[str, Any],
    ) -> None:
        self.keep_alive = event("ping", {})
        self._head = head
        self._model = model
        self._most = most
        self._extra = extra
        self._reader = AnswerReader(parser)
        self._cutter = BlockCutter(head.id, omits_thinking)

    def open(self) -> bytes:
        begun = message(
            self._head, [], running_usage(self._head, CacheUsage(prompt=sum(self._head.prompt_tokens)))
        ) | dict(self._extra)
        return event("message_start", {"message": begun}) + self.keep_alive

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a message is one job
        if not self._most:
            return b""
        pieces = self._reader.take(delta)
        return self._told(self._cutter.take(pieces)) if pieces else b""

    def close(self, outputs: Sequence[RequestOutput], extra: Mapping[str, Any] | None = None) -> bytes:
        (output,) = outputs
        reason, sequence = stop_of(output, self._model, most=self._most, called=bool(self._reader.calls))
        ending: dict[str, Any] = {
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(self._head, output, self._model, answered=self._most > 0),
        }
        if extra is not None:
            ending["twofold"] = extra
        return self._told(self._cutter.finish()) + event("message_delta", ending) + event("message_stop", {})

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return event("error", AnthropicDialect().error(error, request_id))

    def _told(self, steps: Iterable[Step]) -> bytes:
        return b"".join(map(_event_of, steps))


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """One event, whose data have its name as their type."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **data}))


def _event_of(step: Step) -> bytes:
    match step:
        case Added(index, kind, text):
            return _added(index, *DELTAS[kind], text)
        case Started(index, block):
            return event("content_block_start", {"index": index, "content_block": block})
        case BlockEnd(index, kind):
            signed = _added(index, b"signature_delta", b"signature", SIGNATURE) if kind == "thinking" else b""
            return signed + event("content_block_stop", {"index": index})


def _added(index: int, kind: bytes, name: bytes, text: str) -> bytes:
    """Nearly all events are this one, so it is written by hand."""
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
        b'"delta":{"type":"%b","%b":%b}}\n\n' % (index, kind, name, orjson.dumps(text))
    )
