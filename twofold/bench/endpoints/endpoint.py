"""The endpoints of the load generator: paths, headers and request bodies of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import orjson

from twofold.bench.base import BodyReader
from twofold.bench.endpoints.readers import MessagesReader, OpenAIReader
from twofold.bench.load.base import Ask, Prompt, PromptMessage
from twofold.bench.record import RecordedResponse
from twofold.core.errors import ParameterError, describe_name, did_you_mean

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of all requests of a run.

    api_key      sent as a bearer token, as the SDKs of OpenAI and Anthropic do; never shown
    stream       whether completions are streamed, with the usage at the end
    ignore_eos   whether completions continue to their full length; an extension of vLLM, Twofold, SGLang and llama.cpp
    token_ids    whether events list their tokens; an extension of vLLM and Twofold
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
    token_ids: bool = False
    usage_each: bool = False
    temperature: float | None = 0.0
    length: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING, repr=False)
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)


class ApiEndpoint:
    """The endpoint called ``name``: makes request bodies and reads responses.

    prompts  makes the messages of a request, history included

    Raises ParameterError for an unknown name, an option that the API does not have, and an invalid header.
    """

    def __init__(self, name: str, options: EndpointOptions, prompts: Prompt) -> None:
        if name not in ENDPOINTS:
            message = f"There is no endpoint {describe_name(name)}."
            raise ParameterError(message, param="endpoint", hint=did_you_mean(name, ENDPOINTS))
        self.name = name
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
        fields = self._fixed | self._kind.prompt(self._prompts(ask))
        fields[self._length] = ask.output_tokens
        return orjson.dumps(fields | self._extra | dict(ask.fields))

    def reader(self, answer: RecordedResponse) -> BodyReader:
        return self._kind.reader(answer)


def no_prompt(ask: Ask) -> tuple[PromptMessage, ...]:
    """The messages that the request itself has: for endpoints that send no generated prompts."""
    return ask.messages or ()


def roles(messages: tuple[PromptMessage, ...]) -> list[dict[str, str]]:
    """Messages as both APIs and most servers take them."""
    return [{"role": message.role, "content": message.text} for message in messages]


def joined(messages: tuple[PromptMessage, ...]) -> str:
    """The prompt of an endpoint without roles."""
    return "".join(message.text for message in messages)


def _system_apart(messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    others = {"messages": roles(tuple(message for message in messages if message.role != "system"))}
    return others | {"system": system} if system else others


class EndpointKind(NamedTuple):
    """How requests of an endpoint are sent and read. Only Anthropic's has its own headers."""

    path: str
    prompt: Callable[[tuple[PromptMessage, ...]], dict[str, Any]]
    reader: Callable[[RecordedResponse], BodyReader]
    headers: Mapping[str, str] = NOTHING


ENDPOINTS: Final[Mapping[str, EndpointKind]] = MappingProxyType(
    {
        "chat": EndpointKind("/v1/chat/completions", lambda messages: {"messages": roles(messages)}, OpenAIReader),
        "completions": EndpointKind("/v1/completions", lambda messages: {"prompt": joined(messages)}, OpenAIReader),
        "messages": EndpointKind("/v1/messages", _system_apart, MessagesReader, {"anthropic-version": "2023-06-01"}),
    }
)


def _fields(kind: EndpointKind, options: EndpointOptions) -> dict[str, Any]:
    """Fields of every body. Raises ParameterError for options that only OpenAI's endpoints have."""
    extensions = {"ignore_eos": options.ignore_eos, "return_token_ids": options.token_ids}
    fields: dict[str, Any] = {"model": options.model, **{name: True for name, chosen in extensions.items() if chosen}}
    if options.temperature is not None:
        fields["temperature"] = options.temperature
    if options.stream:
        fields["stream"] = True
    if not kind.headers:
        if options.stream:
            each = {"continuous_usage_stats": True} if options.usage_each else {}
            fields["stream_options"] = {"include_usage": True, **each}
        return fields
    for name in fields.keys() & extensions.keys():
        hint = f"Remove it, use the chat endpoint, or set {name} with --extra-body."
        raise ParameterError(f"The messages endpoint has no {name}.", param=name, hint=hint)
    return fields


def _check_header(name: str, value: str) -> None:
    """The value may be a secret, so no error shows it."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise ParameterError(f"{name!r:.60} is not the name of a header.", param="header", hint="Write NAME: VALUE.")
    if not (value.isascii() and value.isprintable()):
        which = "The API key" if name == "authorization" else f"The header {name}"
        hint = "Check for a line end or a non-ASCII character."
        raise ParameterError(f"{which} contains characters that HTTP cannot send.", param="header", hint=hint)
