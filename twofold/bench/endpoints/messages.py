"""``/v1/messages`` of Anthropic, and of the servers that speak like it.

Events have names, and their data say the same as ``type``. Output is in the deltas of content blocks (text, thinking,
the JSON of a tool call) and in the name of a tool. A signature is not generated, so it is none. How many tokens a delta
holds nobody says. Empty is a delta without output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from twofold.bench.base import BodyReader
from twofold.bench.endpoints.failures import UNNAMED, said_error, sentence
from twofold.bench.endpoints.options import EndpointOptions, Prompts
from twofold.bench.endpoints.values import count_at, object_at, objects_at, read_object, text_at
from twofold.bench.load.base import Ask
from twofold.bench.record import UNKNOWN, RecordedResponse
from twofold.core.errors import ParameterError

VERSION: Final = "2023-06-01"


class MessagesEndpoint:
    """Raises ParameterError for an option that this dialect has no words for."""

    name = "messages"
    path = "/v1/messages"

    def __init__(self, options: EndpointOptions, prompts: Prompts) -> None:
        for spelled, chosen in (("ignore_eos", options.ignore_eos), ("return_token_ids", options.token_ids)):
            if chosen:
                raise ParameterError(
                    f"The messages endpoint has no {spelled}.",
                    param=spelled,
                    hint=f"Remove it, use the chat endpoint, or set {spelled} with --extra-body.",
                )
        self.headers: Mapping[str, str] = options.all_headers({"anthropic-version": VERSION})
        self._prompts = prompts
        self._fixed = options.fixed_fields({})
        self._extra = dict(options.extra)

    def body(self, ask: Ask) -> bytes:
        messages = self._prompts(ask)
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        told = self._fixed | {
            "messages": [{"role": each.role, "content": each.text} for each in messages if each.role != "system"],
            "max_tokens": ask.output_tokens,
        }
        if system:
            told["system"] = system
        return orjson.dumps(told | self._extra | dict(ask.fields))

    def reader(self, answer: RecordedResponse) -> BodyReader:
        return MessagesReader(answer)

    def error(self, body: bytes) -> str:
        return sentence(body)


class MessagesReader:
    """Reads a message, whole or as it comes. Only ``message_stop`` ends a stream."""

    __slots__ = ("_answer", "_usage")

    def __init__(self, answer: RecordedResponse) -> None:
        self._answer = answer
        self._usage: dict[str, Any] = {}

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        said = read_object(data)
        kind = said.get("type") or name
        if kind == "content_block_delta":
            if not self._output(moment, *_delta(object_at(said, "delta"))):
                self._answer.empty += 1
        elif kind == "ping":
            self._answer.pings += 1
        else:
            self._other(kind, said, moment)

    def _other(self, kind: object, said: dict[str, Any], moment: float) -> None:
        """Events that an answer has few of. Those of a kind that is not known are passed over, as Anthropic asks."""
        match kind:
            case "content_block_start":
                self._output(moment, *_block(object_at(said, "content_block")))
            case "message_start":
                self._spent(object_at(said, "message"))
            case "message_delta":
                self._spent(said)
                self._answer.finish = text_at(object_at(said, "delta"), "stop_reason") or self._answer.finish
            case "message_stop":
                self._answer.done = True
            case "error":
                self._answer.error = said_error(said) or UNNAMED

    def whole(self, body: bytes, moment: float) -> None:
        answer = self._answer
        answer.streamed = False
        said = read_object(body)
        if said.get("type") == "error":
            answer.error = said_error(said) or UNNAMED
            return
        if type(said.get("content")) is not list:
            raise ValueError("it has no content")
        self._spent(said)
        blocks = [_block(block) for block in objects_at(said, "content")]
        answer.finish = text_at(said, "stop_reason") or None
        answer.done = True
        tokens = UNKNOWN if answer.completion_tokens is None else answer.completion_tokens
        self._output(moment, "".join(text for text, _ in blocks), sum(chars for _, chars in blocks), tokens)

    def _output(self, moment: float, content: str, chars: int, tokens: int = UNKNOWN) -> bool:
        """Notes output, if it is any."""
        if chars == 0 and tokens <= 0:
            return False
        self._answer.chunk(moment, content, tokens)
        if chars != len(content):
            self._answer.chars[-1] = chars
        return True

    def _spent(self, said: Mapping[str, Any]) -> None:
        """``input_tokens`` leaves out what the cache gave and took; later events tell again what they know better."""
        told = object_at(said, "usage")
        self._usage |= {name: value for name, value in told.items() if value is not None}
        usage, answer = self._usage, self._answer
        sent, read = count_at(usage, "input_tokens"), count_at(usage, "cache_read_input_tokens")
        if sent is not None:
            answer.prompt_tokens = sent + (read or 0) + (count_at(usage, "cache_creation_input_tokens") or 0)
        answer.cached_tokens = read
        answer.completion_tokens = count_at(usage, "output_tokens")


def _delta(delta: Mapping[str, Any]) -> tuple[str, int]:
    """The text that a delta adds, and how many characters of any kind."""
    text = delta.get("text")
    if type(text) is str:
        return text, len(text)
    return "", len(text_at(delta, "partial_json")) + len(text_at(delta, "thinking"))


def _block(block: Mapping[str, Any]) -> tuple[str, int]:
    """The same of a block, which is whole, or as it starts."""
    text = text_at(block, "text")
    chars = len(text) + len(text_at(block, "thinking")) + len(text_at(block, "name"))
    given = block.get("input")
    return text, chars + (len(orjson.dumps(given)) if given else 0)
