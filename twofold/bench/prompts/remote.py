"""Counts tokens with the measured server.

vLLM, Twofold, SGLang   POST /tokenize {prompt} or {messages} → {count, tokens}
llama.cpp               POST /tokenize {content} → {tokens}; a chat is rendered by POST /apply-template → {prompt}
TGI                     POST /tokenize {inputs} → [token…]; POST /chat_tokenize {messages} → {tokenize_response}
Anthropic               POST /v1/messages/count_tokens {messages} → {input_tokens}
all                     the usage of a completion of one token
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from twofold.bench.base import Exchange, TokenCounter
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, joined, no_prompt, roles
from twofold.bench.endpoints.values import count_at, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.units import START, user_message
from twofold.bench.record import RecordedResponse
from twofold.core.errors import NetworkError


@dataclass(frozen=True, slots=True)
class ServerCounter:
    """Counts with an endpoint of the server, by calling ``by``."""

    source: str
    by: Callable[[ServerCounter, tuple[PromptMessage, ...]], int | None]
    exchange: Exchange
    headers: Mapping[str, str]
    model: str
    chat: bool

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        return self.by(self, messages)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Posts JSON and returns the JSON of the response; None if it is refused."""
        status, _, reply = self.exchange("POST", path, orjson.dumps(body), self.headers)
        with suppress(ValueError):
            return orjson.loads(reply) if status == 200 else None
        return None


@dataclass(frozen=True, slots=True)
class UsageCounter:
    """Counts by the usage of a completion of one token. Slow: every count is a request."""

    exchange: Exchange
    endpoint: str
    options: EndpointOptions
    source: str = "the usage of answers"

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        options = dataclasses.replace(self.options, stream=False, ignore_eos=False, token_ids=False)
        endpoint = ApiEndpoint(self.endpoint, options, no_prompt)
        body = endpoint.body(Ask(0, 0.0, 1, 1, messages=messages))
        status, _, reply = self.exchange("POST", endpoint.path, body, endpoint.headers)
        answer = RecordedResponse()
        with suppress(ValueError):
            if status == 200:
                endpoint.reader(answer).whole(reply, 0.0)
        return answer.prompt_tokens or None


def remote_counter(exchange: Exchange, endpoint: str, options: EndpointOptions) -> TokenCounter | None:
    """The first of ``remote_counters`` that counts a short prompt; None if none does.

    A connection that breaks counts as no count: the probe of the endpoint reports a server that is gone.
    """
    for counter in remote_counters(exchange, endpoint, options):
        with suppress(NetworkError):
            if counter.count(user_message(f"{START} day")) is not None:
                return counter
    return None


def remote_counters(exchange: Exchange, endpoint: str, options: EndpointOptions) -> list[TokenCounter]:
    """All ways in which a server may count prompts for ``endpoint``, the cheapest first; the usage is the last."""
    plain = dataclasses.replace(options, ignore_eos=False, token_ids=False)
    headers = ApiEndpoint(endpoint, plain, no_prompt).headers
    ways = {
        "the server's /v1/messages/count_tokens": _anthropic,
        "the server's /tokenize": _vllm,
        "the server's /tokenize (llama.cpp)": _llama_cpp,
        "the server's /tokenize (TGI)": _tgi,
    }
    found: list[TokenCounter] = [
        ServerCounter(source, by, exchange, headers, options.model, endpoint != "completions")
        for source, by in ways.items()
        if endpoint == "messages" or by is not _anthropic
    ]
    return [*found, UsageCounter(exchange, endpoint, options)]


def _vllm(server: ServerCounter, messages: tuple[PromptMessage, ...]) -> int | None:
    asked = {"messages": roles(messages)} if server.chat else {"prompt": joined(messages)}
    return _counted(server.post("/tokenize", {"model": server.model, **asked}))


def _llama_cpp(server: ServerCounter, messages: tuple[PromptMessage, ...]) -> int | None:
    text = joined(messages)
    if server.chat:
        rendered = server.post("/apply-template", {"messages": roles(messages)})
        text = text_at(rendered, "prompt") if isinstance(rendered, dict) else ""
    return _counted(server.post("/tokenize", {"content": text, "add_special": True})) if text else None


def _tgi(server: ServerCounter, messages: tuple[PromptMessage, ...]) -> int | None:
    if not server.chat:
        return _length(server.post("/tokenize", {"inputs": joined(messages)}))
    reply = server.post("/chat_tokenize", {"model": server.model, "messages": roles(messages)})
    return _length(reply.get("tokenize_response")) if isinstance(reply, dict) else None


def _anthropic(server: ServerCounter, messages: tuple[PromptMessage, ...]) -> int | None:
    reply = server.post("/v1/messages/count_tokens", {"model": server.model, "messages": roles(messages)})
    return count_at(reply, "input_tokens") or None if isinstance(reply, dict) else None


def _counted(reply: object) -> int | None:
    """llama.cpp returns no tokens for a request that it does not understand."""
    if not isinstance(reply, dict):
        return None
    return count_at(reply, "count") or _length(reply.get("tokens"))


def _length(tokens: object) -> int | None:
    return len(tokens) or None if isinstance(tokens, list) else None
