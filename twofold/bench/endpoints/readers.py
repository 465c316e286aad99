"""Reads responses of OpenAI's and Anthropic's APIs.

OpenAI: A choice's ``delta`` (of a stream), ``message`` (of a whole chat) or the choice itself (of a completion) holds
output: its content, reasoning (``reasoning_content``; in Ollama, OpenRouter and newer vLLM ``reasoning``), a refusal,
and names and arguments of tool calls. All of it was generated, so all of it counts; only the content is kept as text,
which later turns repeat.

The tokens of an event are known from ``token_ids`` (vLLM and Twofold, on request), from log-probabilities, or from a
usage that grows from event to event (``continuous_usage_stats`` of vLLM and SGLang). An event with tokens and no text
counts as output. An event is empty if it could have held output and did not: neither the role at the start, nor a
finish reason, nor the usage.

Anthropic: events have names, which their data repeat as ``type``. Output is in the deltas of content blocks (text,
thinking, the JSON of a tool call) and in the name of a tool; a signature is not generated and does not count. The
number of tokens in a delta is unknown. A delta without output is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from twofold.bench.endpoints.values import (
    UNNAMED,
    count_at,
    error_message,
    length_at,
    object_at,
    objects_at,
    read_object,
    text_at,
)
from twofold.bench.record import UNKNOWN, RecordedResponse

DONE: Final = b"[DONE]"


class OpenAIReader:
    """Reads chats and completions. A finish reason completes a response, with or without ``[DONE]``."""

    def __init__(self, answer: RecordedResponse) -> None:
        self._answer = answer
        self._counted: int | None = 0
        """Tokens of the usage so far; None after an event with output and without a usage."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:  # noqa: ARG002 - OpenAI names no events
        if data == DONE:
            self._answer.done = True
            return
        fields = read_object(data)
        choices = fields.get("choices")
        usage = fields.get("usage")
        if fields.get("error") or fields.get("object") == "error":
            self._answer.error = error_message(fields) or UNNAMED
        elif type(choices) is list and choices:
            self._choices(choices, usage, moment)
        if usage:
            read_usage(usage, self._answer)

    def whole(self, body: bytes, moment: float) -> None:
        answer = self._answer
        answer.streamed = False
        fields = read_object(body)
        if fields.get("error"):
            answer.error = error_message(fields) or UNNAMED
            return
        choices = objects_at(fields, "choices")
        if not choices:
            raise ValueError("it has no choices")
        read_usage(fields.get("usage"), answer)
        parts = [_output(choice, "message") for choice in choices]
        answer.finish = next((reason for choice in choices if (reason := text_at(choice, "finish_reason"))), None)
        answer.done = True
        tokens = UNKNOWN if answer.completion_tokens is None else answer.completion_tokens
        content, chars = "".join(text for text, _ in parts), sum(chars for _, chars in parts)
        if chars or tokens > 0:
            answer.chunk(moment, content, tokens, chars)

    def _choices(self, choices: list[Any], usage: object, moment: float) -> None:
        """Reads an event with choices: nearly always one."""
        answer = self._answer
        content, chars, declared, structural = "", 0, UNKNOWN, False
        for choice in choices:
            if type(choice) is not dict:
                raise ValueError("it has a choice that is no object")
            text, length = _output(choice, "delta")
            content += text
            chars += length
            count = _declared_tokens(choice)
            if count != UNKNOWN:
                declared = count if declared == UNKNOWN else declared + count
            reason = choice.get("finish_reason")
            if reason:
                answer.finish = reason if type(reason) is str else None
                answer.done = structural = True
        counted = self._grown(usage, chars > 0 or declared > 0)
        tokens = counted if declared == UNKNOWN else declared
        if chars or tokens > 0:
            answer.chunk(moment, content, tokens, chars)
        elif not structural and "role" not in object_at(choices[0], "delta"):  # the first event sets the role
            answer.empty += 1

    def _grown(self, usage: object, output: bool) -> int:
        """Tokens of this event, if every event so far had a usage."""
        before = self._counted
        if before is None:
            return UNKNOWN
        now = count_at(usage, "completion_tokens") if type(usage) is dict else None
        if now is None:
            if output:
                self._counted = None
            return UNKNOWN
        self._counted = now
        return now - before if now > before else UNKNOWN


def _output(choice: Mapping[str, Any], place: str) -> tuple[str, int]:
    """The content that a choice adds, and its characters of any kind."""
    found = choice.get(place)
    if type(found) is not dict:
        text = choice.get("text")
        return (text, len(text)) if type(text) is str else ("", 0)
    content = found.get("content")
    if type(content) is not str:
        content = ""
    if len(found) == 1 and content:
        return content, len(content)
    others = [text_at(found, "reasoning_content") or text_at(found, "reasoning"), text_at(found, "refusal")]
    calls = [object_at(call, "function") for call in objects_at(found, "tool_calls")]
    for call in (*calls, object_at(found, "function_call")):
        others += [text_at(call, "name"), text_at(call, "arguments")]
    return content, len(content) + sum(map(len, others))


def _declared_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens that a choice declares."""
    count = length_at(choice, "token_ids")
    if count != UNKNOWN:
        return count
    logprobs = choice.get("logprobs")
    if type(logprobs) is not dict:
        return UNKNOWN
    count = length_at(logprobs, "content")
    return length_at(logprobs, "tokens") if count == UNKNOWN else count


def read_usage(usage: object, answer: RecordedResponse) -> None:
    """Reads the usage; ``prompt_tokens`` includes cached ones."""
    if type(usage) is not dict:
        return
    counts = {
        "prompt_tokens": count_at(usage, "prompt_tokens"),
        "completion_tokens": count_at(usage, "completion_tokens"),
        "cached_tokens": count_at(object_at(usage, "prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": count_at(object_at(usage, "completion_tokens_details"), "reasoning_tokens"),
    }
    for name, count in counts.items():
        if count is not None:
            setattr(answer, name, count)


class MessagesReader:
    """Reads a message, whole or streamed. Only ``message_stop`` completes a stream."""

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
        """Records output. Returns False if the event has no output."""
        if chars == 0 and tokens <= 0:
            return False
        self._answer.chunk(moment, content, tokens, chars)
        return True

    def _spent(self, fields: Mapping[str, Any]) -> None:
        """Reads the usage: ``input_tokens`` excludes cache reads and writes. Later events update it."""
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
