"""Counts tokens with the measured server.

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
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, joined, no_prompt, roles
from twofold.bench.endpoints.values import count_at, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.prompter import START, TokenCounter, user_message
from twofold.bench.record import RecordedResponse
from twofold.core.errors import NetworkError


def remote_counter(exchange: Exchange, endpoint: str, options: EndpointOptions) -> TokenCounter | None:
    """The cheapest way in which the server counts a short prompt; None if it cannot count.

    A connection that breaks counts as no count: the probe of the endpoint reports a server that is gone.
    """
    chat, options = endpoint != "completions", replace(options, ignore_eos=False)
    server = _Server(exchange, ApiEndpoint(endpoint, options, no_prompt).headers, options.model, chat)
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
    """Counts with endpoints of the server; ``chat``: messages instead of one text."""

    exchange: Exchange
    headers: Mapping[str, str]
    model: str
    chat: bool

    def vllm(self, messages: tuple[PromptMessage, ...]) -> int | None:
        asked = {"messages": roles(messages)} if self.chat else {"prompt": joined(messages)}
        return _counted(self._post("/tokenize", {"model": self.model, **asked}))

    def llama_cpp(self, messages: tuple[PromptMessage, ...]) -> int | None:
        text = joined(messages)
        if self.chat:
            rendered = self._post("/apply-template", {"messages": roles(messages)})
            text = text_at(rendered, "prompt") if isinstance(rendered, dict) else ""
        return _counted(self._post("/tokenize", {"content": text, "add_special": True})) if text else None

    def tgi(self, messages: tuple[PromptMessage, ...]) -> int | None:
        if not self.chat:
            return _length(self._post("/tokenize", {"inputs": joined(messages)}))
        reply = self._post("/chat_tokenize", {"model": self.model, "messages": roles(messages)})
        return _length(reply.get("tokenize_response")) if isinstance(reply, dict) else None

    def anthropic(self, messages: tuple[PromptMessage, ...]) -> int | None:
        reply = self._post("/v1/messages/count_tokens", {"model": self.model, "messages": roles(messages)})
        return count_at(reply, "input_tokens") or None if isinstance(reply, dict) else None

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Posts JSON and returns the JSON of the response; None if it is refused."""
        status, _, reply = self.exchange("POST", path, orjson.dumps(body), self.headers)
        with suppress(ValueError):
            return orjson.loads(reply) if status == 200 else None
        return None


def usage_counter(exchange: Exchange, endpoint: str, options: EndpointOptions) -> TokenCounter:
    """Counts by the usage of a completion of one token. Slow: every count is a request."""
    probe = ApiEndpoint(endpoint, replace(options, stream=False), no_prompt)

    def count(messages: tuple[PromptMessage, ...]) -> int | None:
        status, _, reply = exchange("POST", probe.path, probe.body(Ask(0, 0.0, 1, 1, messages=messages)), probe.headers)
        response = RecordedResponse()
        with suppress(ValueError):
            if status == 200:
                probe.reader(response).whole(reply, 0.0)
        return response.prompt_tokens or None

    return TokenCounter("the usage of answers", count)


def _counted(reply: object) -> int | None:
    """llama.cpp returns no tokens for a request that it does not understand."""
    if not isinstance(reply, dict):
        return None
    return count_at(reply, "count") or _length(reply.get("tokens"))


def _length(tokens: object) -> int | None:
    return len(tokens) or None if isinstance(tokens, list) else None
