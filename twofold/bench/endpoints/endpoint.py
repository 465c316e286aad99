"""The endpoints of the load generator: request bodies and response readers of OpenAI's and Anthropic's APIs.

OpenAI: A choice's ``delta`` (of a stream), ``message`` (of a whole chat) or the choice itself (of a completion) holds
output: its content (a text, or Mistral's list of parts), reasoning (``reasoning_content``; in Ollama, OpenRouter and
newer vLLM ``reasoning``), a refusal, and names and arguments of tool calls. All of it was generated, so all of it
counts; only the content is kept as text, which later turns repeat.

The tokens of an event are known from ``token_ids`` (vLLM and Twofold, on request), from log-probabilities, or from a
usage that grows from event to event (``continuous_usage_stats`` of vLLM and SGLang). An event with tokens and no text
counts as output. An event is empty if it could have contained output but did not; events with the role at the
start, a finish reason or only the usage are not empty.

Anthropic: events have names, which their data repeat as ``type``. Output is in the deltas of content blocks (text,
thinking, the JSON of a tool call) and in the name of a tool; a signature is not generated and does not count. The
number of tokens in a delta is unknown. A delta without output is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol

import orjson

from twofold.bench.endpoints.values import (
    UNNAMED,
    count_at,
    error_message,
    length_at,
    object_at,
    objects_at,
    parts_at,
    read_object,
    text_at,
)
from twofold.bench.load.base import Ask, Prompt, PromptMessage
from twofold.bench.record import UNKNOWN, RecordedResponse
from twofold.core.errors import ParameterError, describe_name, did_you_mean

DONE: Final = b"[DONE]"
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of all requests of a run.

    api_key      sent as a bearer token, as by the SDKs of OpenAI and Anthropic; never shown
    stream       whether completions are streamed, with the usage at the end
    ignore_eos   whether completions continue to their full length; an extension of vLLM, Twofold, SGLang and llama.cpp
    usage_each   whether events of OpenAI's streams have the usage so far (continuous_usage_stats)
    temperature  None is the server's default
    length       name of the limit on output tokens: OpenAI's own models require max_completion_tokens
    headers      additional headers; they override others of the same name
    extra        additional fields of the body; they override all others but those of a single request
    """

    model: str
    api_key: str | None = field(default=None, repr=False)
    stream: bool = True
    ignore_eos: bool = False
    usage_each: bool = False
    temperature: float | None = 0.0
    length: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING, repr=False)
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)


class ApiEndpoint:
    """The endpoint called ``name``: makes request bodies and reads responses.

    prompts  makes the messages of a request, history included
    path     relative to the server's base URL: /v1/chat/completions
    headers  of every request, except those of HTTP itself

    Raises ParameterError for an unknown name, an option that the API does not have, and an invalid header.
    """

    def __init__(self, name: str, options: EndpointOptions, prompts: Prompt) -> None:
        if name not in ENDPOINTS:
            message = f"There is no endpoint {describe_name(name)}."
            raise ParameterError(message, param="endpoint", hint=did_you_mean(name, ENDPOINTS))
        kind = self._kind = ENDPOINTS[name]
        self.path = kind.path
        self._prompts = prompts
        self._length = "max_tokens" if kind.headers else options.length
        self._extra = dict(options.extra)
        self._fixed = _fields(kind, options)
        key = {} if options.api_key is None else {"authorization": f"Bearer {options.api_key}"}
        given = {name.lower(): value for name, value in options.headers.items()}
        self.headers: Mapping[str, str] = {"content-type": "application/json", **kind.headers, **key, **given}
        for header, value in self.headers.items():
            _check_header(header, value)

    def body(self, ask: Ask) -> bytes:
        """The JSON body of a request."""
        fields = self._fixed | self._kind.prompt(self._prompts(ask))
        fields[self._length] = ask.output_tokens
        return orjson.dumps(fields | self._extra | dict(ask.fields))

    def reader(self, response: RecordedResponse) -> BodyReader:
        """A reader that reads one response into ``response``."""
        return self._kind.reader(response)


def given_messages(ask: Ask) -> tuple[PromptMessage, ...]:
    """The messages in the request itself, for endpoints that send no generated prompts."""
    return ask.messages or ()


def role_dicts(messages: tuple[PromptMessage, ...]) -> list[dict[str, str]]:
    """The messages with roles and contents, as both APIs expect them."""
    return [{"role": message.role, "content": message.text} for message in messages]


def plain_text(messages: tuple[PromptMessage, ...]) -> str:
    """The messages as one text, for endpoints without messages."""
    return "".join(message.text for message in messages)


def _system_apart(messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
    """The prompt of Anthropic's endpoint: system messages are a field of their own."""
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    others = {"messages": role_dicts(tuple(message for message in messages if message.role != "system"))}
    return others | {"system": system} if system else others


def _fields(kind: EndpointKind, options: EndpointOptions) -> dict[str, Any]:
    """Fields of every body. Raises ParameterError for options that only OpenAI's endpoints have."""
    fields: dict[str, Any] = {"model": options.model}
    if options.ignore_eos:
        if kind.headers:
            hint = "Remove it, use the chat endpoint, or set ignore_eos with --extra-body."
            raise ParameterError("The messages endpoint has no ignore_eos.", param="ignore_eos", hint=hint)
        fields["ignore_eos"] = True
    if options.temperature is not None:
        fields["temperature"] = options.temperature
    if options.stream:
        fields["stream"] = True
        if not kind.headers:
            each = {"continuous_usage_stats": True} if options.usage_each else {}
            fields["stream_options"] = {"include_usage": True, **each}
    return fields


def _check_header(name: str, value: str) -> None:
    """Raises ParameterError, without the value, which may be a secret."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise ParameterError(f"{name!r:.60} is not the name of a header.", param="header", hint="Write NAME: VALUE.")
    if not (value.isascii() and value.isprintable()):
        which = "The API key" if name == "authorization" else f"The header {name}"
        hint = "Check for a line end or a non-ASCII character."
        raise ParameterError(f"{which} contains characters that HTTP does not allow.", param="header", hint=hint)


class BodyReader(Protocol):
    """Reads the body of one successful response into a ``RecordedResponse``."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        """Reads an event of a stream that was complete at ``moment``. ``name`` is from its ``event:`` line.

        Raises ValueError if it does not match the API.
        """

    def whole(self, body: bytes, moment: float) -> None:
        """Reads the body of a response that is not a stream. Raises ValueError if it does not match the API."""


class OpenAIReader:
    """Reads chats and completions. A finish reason completes a response, with or without ``[DONE]``."""

    def __init__(self, response: RecordedResponse) -> None:
        self._response = response
        self._counted: int | None = 0
        """Tokens in the usage of the last event; None after an event with output but without a usage."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:  # noqa: ARG002 - OpenAI names no events
        if data == DONE:
            self._response.done = True
            return
        fields = read_object(data)
        choices = fields.get("choices")
        usage = fields.get("usage")
        if fields.get("error") or fields.get("object") == "error":
            self._response.error = error_message(fields) or UNNAMED
        elif type(choices) is list and choices:
            self._choices(choices, usage, moment)
        if usage:
            read_usage(usage, self._response)

    def whole(self, body: bytes, moment: float) -> None:
        response = self._response
        response.streamed = False
        fields = read_object(body)
        if fields.get("error"):
            response.error = error_message(fields) or UNNAMED
            return
        choices = objects_at(fields, "choices")
        if not choices:
            raise ValueError("it has no choices")
        read_usage(fields.get("usage"), response)
        parts = [_output(choice, "message") for choice in choices]
        response.finish = next((reason for choice in choices if (reason := text_at(choice, "finish_reason"))), None)
        response.done = True
        tokens = UNKNOWN if response.completion_tokens is None else response.completion_tokens
        if tokens > 0 or any(output for _, output in parts):
            response.chunk(moment, "".join(text for text, _ in parts), tokens)

    def _choices(self, choices: list[Any], usage: object, moment: float) -> None:
        """Reads an event with choices, nearly always one."""
        response = self._response
        content, output, declared, finished = "", False, UNKNOWN, False
        for choice in choices:
            if type(choice) is not dict:
                raise ValueError("it has a choice that is not an object")
            text, has_output = _output(choice, "delta")
            content += text
            output = output or has_output
            count = _declared_tokens(choice)
            if count != UNKNOWN:
                declared = count if declared == UNKNOWN else declared + count
            reason = choice.get("finish_reason")
            if reason:
                response.finish = reason if type(reason) is str else None
                response.done = finished = True
        counted = self._usage_growth(usage, output or declared > 0)
        tokens = counted if declared == UNKNOWN else declared
        if output or tokens > 0:
            response.chunk(moment, content, tokens)
        elif not finished and "role" not in object_at(choices[0], "delta"):  # the first event sets the role
            response.empty += 1

    def _usage_growth(self, usage: object, output: bool) -> int:
        """Tokens of this event by the growth of the usage; UNKNOWN unless all events with output had a usage."""
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


def _output(choice: Mapping[str, Any], place: str) -> tuple[str, bool]:
    """The content that a choice adds, and whether it adds output of any kind."""
    found = choice.get(place)
    content, output = parts_at(found, "content") if type(found) is dict else parts_at(choice, "text")
    if output or type(found) is not dict:
        return content, output
    calls = [object_at(call, "function") for call in objects_at(found, "tool_calls")]
    calls.append(object_at(found, "function_call"))
    texts = [text_at(found, name) for name in ("reasoning_content", "reasoning", "refusal")]
    return "", any(texts) or any(text_at(call, name) for call in calls for name in ("name", "arguments"))


def _declared_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens of a choice by its ``token_ids`` or log-probabilities, or UNKNOWN."""
    count = length_at(choice, "token_ids")
    if count != UNKNOWN:
        return count
    logprobs = choice.get("logprobs")
    if type(logprobs) is not dict:
        return UNKNOWN
    count = length_at(logprobs, "content")
    return length_at(logprobs, "tokens") if count == UNKNOWN else count


def read_usage(usage: object, response: RecordedResponse) -> None:
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
            setattr(response, name, count)


class MessagesReader:
    """Reads a message, whole or streamed. Only ``message_stop`` completes a stream."""

    def __init__(self, response: RecordedResponse) -> None:
        self._response = response
        self._usage: dict[str, Any] = {}

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        fields = read_object(data)
        kind = fields.get("type") or name
        if kind == "content_block_delta":
            text, output = _delta(object_at(fields, "delta"))
            if output:
                self._response.chunk(moment, text)
            else:
                self._response.empty += 1
        elif kind == "ping":
            self._response.pings += 1
        else:
            self._other(kind, fields, moment)

    def _other(self, kind: object, fields: dict[str, Any], moment: float) -> None:
        """Reads the less frequent events; unknown kinds are ignored, as Anthropic requires."""
        match kind:
            case "content_block_start":
                text, output = _block(object_at(fields, "content_block"))
                if output:
                    self._response.chunk(moment, text)
            case "message_start":
                self._update_usage(object_at(fields, "message"))
            case "message_delta":
                self._update_usage(fields)
                self._response.finish = text_at(object_at(fields, "delta"), "stop_reason") or self._response.finish
            case "message_stop":
                self._response.done = True
            case "error":
                self._response.error = error_message(fields) or UNNAMED

    def whole(self, body: bytes, moment: float) -> None:
        response = self._response
        response.streamed = False
        fields = read_object(body)
        if fields.get("type") == "error":
            response.error = error_message(fields) or UNNAMED
            return
        if type(fields.get("content")) is not list:
            raise ValueError("it has no content")
        self._update_usage(fields)
        blocks = [_block(block) for block in objects_at(fields, "content")]
        response.finish = text_at(fields, "stop_reason") or None
        response.done = True
        tokens = UNKNOWN if response.completion_tokens is None else response.completion_tokens
        if tokens > 0 or any(output for _, output in blocks):
            response.chunk(moment, "".join(text for text, _ in blocks), tokens)

    def _update_usage(self, fields: Mapping[str, Any]) -> None:
        """Reads the usage, which later events update. Its ``input_tokens`` excludes cache reads and writes."""
        self._usage |= {name: value for name, value in object_at(fields, "usage").items() if value is not None}
        usage, response = self._usage, self._response
        sent, read = count_at(usage, "input_tokens"), count_at(usage, "cache_read_input_tokens")
        if sent is not None:
            response.prompt_tokens = sent + (read or 0) + (count_at(usage, "cache_creation_input_tokens") or 0)
        response.cached_tokens = read
        response.completion_tokens = count_at(usage, "output_tokens")


def _delta(delta: Mapping[str, Any]) -> tuple[str, bool]:
    """The text that a delta adds, and whether it adds output of any kind."""
    text = text_at(delta, "text")
    return text, bool(text or text_at(delta, "partial_json") or text_at(delta, "thinking"))


def _block(block: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of a content block, whole or at its start, and whether it has output of any kind."""
    text = text_at(block, "text")
    return text, bool(text or text_at(block, "thinking") or text_at(block, "name") or block.get("input"))


class EndpointKind(NamedTuple):
    """The path, the prompt fields and the reader of an endpoint. Only Anthropic's endpoint has headers of its own."""

    path: str
    prompt: Callable[[tuple[PromptMessage, ...]], dict[str, Any]]
    reader: Callable[[RecordedResponse], BodyReader]
    headers: Mapping[str, str] = NOTHING


ENDPOINTS: Final[Mapping[str, EndpointKind]] = MappingProxyType(
    {
        "chat": EndpointKind("/v1/chat/completions", lambda messages: {"messages": role_dicts(messages)}, OpenAIReader),
        "completions": EndpointKind("/v1/completions", lambda messages: {"prompt": plain_text(messages)}, OpenAIReader),
        "messages": EndpointKind("/v1/messages", _system_apart, MessagesReader, {"anthropic-version": "2023-06-01"}),
    }
)
