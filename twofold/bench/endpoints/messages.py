"""Reads responses of Anthropic's ``/v1/messages`` and of compatible servers.

Events have names, which their data repeat as ``type``. Output is in the deltas of content blocks (text, thinking, the
JSON of a tool call) and in the name of a tool; a signature is not generated and does not count. The number of tokens in
a delta is unknown. A delta without output is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from twofold.bench.endpoints.values import (
    UNNAMED,
    count_at,
    error_message,
    object_at,
    objects_at,
    read_object,
    text_at,
)
from twofold.bench.record import UNKNOWN, RecordedResponse


class MessagesReader:
    """Reads a message, whole or streamed. Only ``message_stop`` completes a stream."""

    __slots__ = ("_answer", "_usage")

    def __init__(self, answer: RecordedResponse) -> None:
        self._answer = answer
        self._usage: dict[str, Any] = {}

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        fields = read_object(data)
        kind = fields.get("type") or name
        if kind == "content_block_delta":
            if not self._output(moment, *_delta(object_at(fields, "delta"))):
                self._answer.empty += 1
        elif kind == "ping":
            self._answer.pings += 1
        else:
            self._other(kind, fields, moment)

    def _other(self, kind: object, fields: dict[str, Any], moment: float) -> None:
        """Reads the less frequent events; unknown kinds are ignored, as Anthropic requires."""
        match kind:
            case "content_block_start":
                self._output(moment, *_block(object_at(fields, "content_block")))
            case "message_start":
                self._spent(object_at(fields, "message"))
            case "message_delta":
                self._spent(fields)
                self._answer.finish = text_at(object_at(fields, "delta"), "stop_reason") or self._answer.finish
            case "message_stop":
                self._answer.done = True
            case "error":
                self._answer.error = error_message(fields) or UNNAMED

    def whole(self, body: bytes, moment: float) -> None:
        answer = self._answer
        answer.streamed = False
        fields = read_object(body)
        if fields.get("type") == "error":
            answer.error = error_message(fields) or UNNAMED
            return
        if type(fields.get("content")) is not list:
            raise ValueError("it has no content")
        self._spent(fields)
        blocks = [_block(block) for block in objects_at(fields, "content")]
        answer.finish = text_at(fields, "stop_reason") or None
        answer.done = True
        tokens = UNKNOWN if answer.completion_tokens is None else answer.completion_tokens
        self._output(moment, "".join(text for text, _ in blocks), sum(chars for _, chars in blocks), tokens)

    def _output(self, moment: float, content: str, chars: int, tokens: int = UNKNOWN) -> bool:
        """Records output; False if there is none."""
        if chars == 0 and tokens <= 0:
            return False
        self._answer.chunk(moment, content, tokens, chars)
        return True

    def _spent(self, fields: Mapping[str, Any]) -> None:
        """Reads the usage;

        ``input_tokens`` excludes tokens read from and written to the cache. Later events update it.
        """
        self._usage |= {name: value for name, value in object_at(fields, "usage").items() if value is not None}
        usage, answer = self._usage, self._answer
        sent, read = count_at(usage, "input_tokens"), count_at(usage, "cache_read_input_tokens")
        if sent is not None:
            answer.prompt_tokens = sent + (read or 0) + (count_at(usage, "cache_creation_input_tokens") or 0)
        answer.cached_tokens = read
        answer.completion_tokens = count_at(usage, "output_tokens")


def _delta(delta: Mapping[str, Any]) -> tuple[str, int]:
    """The text that a delta adds, and its characters of any kind."""
    text = delta.get("text")
    if type(text) is str:
        return text, len(text)
    return "", len(text_at(delta, "partial_json")) + len(text_at(delta, "thinking"))


def _block(block: Mapping[str, Any]) -> tuple[str, int]:
    """The same of a block, whole or at its start."""
    text = text_at(block, "text")
    chars = len(text) + len(text_at(block, "thinking")) + len(text_at(block, "name"))
    given = block.get("input")
    return text, chars + (len(orjson.dumps(given)) if given else 0)
