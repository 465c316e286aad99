"""Counts tokens with the measured server, which has one of these APIs:

vLLM, Twofold, SGLang   POST /tokenize {prompt} or {messages} → {count, tokens}
llama.cpp               POST /tokenize {content} → {tokens}; a chat is rendered by POST /apply-template → {prompt}
TGI                     POST /tokenize {inputs} → [token…]; POST /chat_tokenize {messages} → {tokenize_response}
Anthropic               POST /v1/messages/count_tokens {messages} → {input_tokens}
all                     the usage of a completion of one token
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from twofold.bench.client.target import Exchange
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, given_messages, plain_text, role_dicts
from twofold.bench.endpoints.values import count_at, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.prompter import START, TokenCounter, user_message
from twofold.bench.record import RecordedResponse
from twofold.core.errors import NetworkError


def remote_counter(exchange: Exchange, endpoint: str, options: EndpointOptions) -> TokenCounter | None:
    """A counter with the cheapest API that counts a short prompt; None if the server has none.

    A failed connection counts as an API that the server does not have: the first request reports a server that is gone.
    """
    chat, options = endpoint != "completions", replace(options, ignore_eos=False)
    server = _Server(exchange, ApiEndpoint(endpoint, options, given_messages).headers, options.model, chat)
    counters = [
        TokenCounter("the server's /tokenize", server.vllm),
        TokenCounter("the server's /tokenize (llama.cpp)", server.llama_cpp),
        TokenCounter("the server's /tokenize (TGI)", server.tgi),
        usage_counter(exchange, endpoint, options),
    ]
    if endpoint == "messages":
        counters.insert(0, TokenCounter("the server's /v1/messages/count_tokens", server.anthropic))
    for counter in counters:
        with suppress(NetworkError):
            if counter.count(user_message(f"{START} day")) is not None:
                return counter
    return None


@dataclass(frozen=True, slots=True)
class _Server:
    """Counts with endpoints of the server. ``chat``: whether it counts messages or one text."""

    exchange: Exchange
    headers: Mapping[str, str]
    model: str
    chat: bool

    def vllm(self, messages: tuple[PromptMessage, ...]) -> int | None:
        asked = {"messages": role_dicts(messages)} if self.chat else {"prompt": plain_text(messages)}
        return _counted(self._post("/tokenize", {"model": self.model, **asked}))

    def llama_cpp(self, messages: tuple[PromptMessage, ...]) -> int | None:
        text = plain_text(messages)
        if self.chat:
            rendered = self._post("/apply-template", {"messages": role_dicts(messages)})
            text = text_at(rendered, "prompt") if isinstance(rendered, dict) else ""
        return _counted(self._post("/tokenize", {"content": text, "add_special": True})) if text else None

    def tgi(self, messages: tuple[PromptMessage, ...]) -> int | None:
        if not self.chat:
            return _length(self._post("/tokenize", {"inputs": plain_text(messages)}))
        reply = self._post("/chat_tokenize", {"model": self.model, "messages": role_dicts(messages)})
        return _length(reply.get("tokenize_response")) if isinstance(reply, dict) else None

    def anthropic(self, messages: tuple[PromptMessage, ...]) -> int | None:
        reply = self._post("/v1/messages/count_tokens", {"model": self.model, "messages": role_dicts(messages)})
        return count_at(reply, "input_tokens") or None if isinstance(reply, dict) else None

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Posts JSON and returns the JSON of the response; None for an error status or invalid JSON."""
        status, _, reply = self.exchange("POST", path, orjson.dumps(body), self.headers)
        with suppress(ValueError):
            return orjson.loads(reply) if status == 200 else None
        return None


def usage_counter(exchange: Exchange, endpoint: str, options: EndpointOptions) -> TokenCounter:
    """Counts by the usage of a completion of one token. Slow: each count runs the model."""
    probe = ApiEndpoint(endpoint, replace(options, stream=False), given_messages)

    def count(messages: tuple[PromptMessage, ...]) -> int | None:
        status, _, reply = exchange("POST", probe.path, probe.body(Ask(0, 0.0, 1, 1, messages=messages)), probe.headers)
        response = RecordedResponse()
        with suppress(ValueError):
            if status == 200:
                probe.reader(response).whole(reply, 0.0)
        return response.prompt_tokens or None

    return TokenCounter("the usage of completions", count)


def _counted(reply: object) -> int | None:
    """llama.cpp returns no tokens for a request that it does not understand."""
    if not isinstance(reply, dict):
        return None
    return count_at(reply, "count") or _length(reply.get("tokens"))


def _length(tokens: object) -> int | None:
    return len(tokens) or None if isinstance(tokens, list) else None
