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
from functools import partial
from typing import Any, TypeAlias

import orjson

from twofold.bench.base import Exchange, TokenCounter
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, joined, no_prompt, roles
from twofold.bench.endpoints.values import count_at, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.units import START, user_message
from twofold.bench.record import RecordedResponse
from twofold.core.errors import NetworkError

Post: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Posts JSON to a path and returns the JSON of the response; None if it is refused."""

CountBy: TypeAlias = Callable[[Post, tuple[PromptMessage, ...]], int | None]


@dataclass(frozen=True, slots=True)
class ServerCounter:
    """Counts with an endpoint of the server, by calling ``by``."""

    source: str
    post: Post
    by: CountBy

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        return self.by(self.post, messages)


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
        if status != 200:
            return None
        try:
            endpoint.reader(answer).whole(reply, 0.0)
        except ValueError:
            return None
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
    post = partial(_post, exchange, ApiEndpoint(endpoint, plain, no_prompt).headers)
    model, chat = options.model, endpoint != "completions"
    ways: dict[str, CountBy] = {
        "the server's /tokenize": partial(_vllm, model, chat),
        "the server's /tokenize (llama.cpp)": partial(_llama_cpp, chat),
        "the server's /tokenize (TGI)": partial(_tgi, model, chat),
    }
    if endpoint == "messages":
        ways = {"the server's /v1/messages/count_tokens": partial(_anthropic, model), **ways}
    found: list[TokenCounter] = [ServerCounter(source, post, by) for source, by in ways.items()]
    return [*found, UsageCounter(exchange, endpoint, options)]


def _post(exchange: Exchange, headers: Mapping[str, str], path: str, body: Mapping[str, Any]) -> Any:
    status, _, reply = exchange("POST", path, orjson.dumps(body), headers)
    if status != 200:
        return None
    try:
        return orjson.loads(reply)
    except ValueError:
        return None


def _vllm(model: str, chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    asked = {"messages": roles(messages)} if chat else {"prompt": joined(messages)}
    return _counted(post("/tokenize", {"model": model, **asked}))


def _llama_cpp(chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    text = joined(messages)
    if chat:
        rendered = post("/apply-template", {"messages": roles(messages)})
        text = text_at(rendered, "prompt") if isinstance(rendered, dict) else ""
    return _counted(post("/tokenize", {"content": text, "add_special": True})) if text else None


def _tgi(model: str, chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    if not chat:
        return _length(post("/tokenize", {"inputs": joined(messages)}))
    reply = post("/chat_tokenize", {"model": model, "messages": roles(messages)})
    return _length(reply.get("tokenize_response")) if isinstance(reply, dict) else None


def _anthropic(model: str, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    reply = post("/v1/messages/count_tokens", {"model": model, "messages": roles(messages)})
    return count_at(reply, "input_tokens") or None if isinstance(reply, dict) else None


def _counted(reply: object) -> int | None:
    """llama.cpp returns no tokens for a request that it does not understand."""
    if not isinstance(reply, dict):
        return None
    return count_at(reply, "count") or _length(reply.get("tokens"))


def _length(tokens: object) -> int | None:
    return len(tokens) or None if isinstance(tokens, list) else None
