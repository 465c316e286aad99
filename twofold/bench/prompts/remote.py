"""Counts that the measured server itself gives.

vLLM, Twofold, SGLang   POST /tokenize {prompt} or {messages} → {count, tokens}
llama.cpp               POST /tokenize {content} → {tokens}; a chat is rendered by POST /apply-template → {prompt}
TGI                     POST /tokenize {inputs} → [token…]; POST /chat_tokenize {messages} → {tokenize_response}
Anthropic               POST /v1/messages/count_tokens {messages} → {input_tokens}
all                     the usage of an answer of one token
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import orjson

from twofold.bench.endpoints.choose import endpoint_of
from twofold.bench.endpoints.exchange import Exchange
from twofold.bench.endpoints.options import EndpointOptions
from twofold.bench.endpoints.values import count_at, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.base import TokenCounter
from twofold.bench.record import RecordedResponse

Post: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Sends JSON to a path and gives the JSON that comes back; None where it is refused."""

CountBy: TypeAlias = Callable[[Post, tuple[PromptMessage, ...]], int | None]


@dataclass(frozen=True, slots=True)
class ServerCounter:
    """A server's endpoint for counting. ``by`` asks it."""

    source: str
    post: Post
    by: CountBy

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        return self.by(self.post, messages)


@dataclass(frozen=True, slots=True)
class UsageCounter:
    """What a server says that it read, when asked for an answer of one token. Slow: every count is a request."""

    exchange: Exchange
    endpoint: str
    options: EndpointOptions
    source: str = "the usage of answers"

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        options = dataclasses.replace(self.options, stream=False, ignore_eos=False, token_ids=False)
        endpoint = endpoint_of(self.endpoint, options, lambda ask: ask.messages or ())
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


def remote_counters(exchange: Exchange, endpoint: str, options: EndpointOptions) -> list[TokenCounter]:
    """Every way in which a server may count prompts for ``endpoint``, the cheapest first; few servers know more than
    one, and the usage comes last."""
    headers = endpoint_of(endpoint, dataclasses.replace(options, ignore_eos=False, token_ids=False), _nobody).headers
    post = partial(_post, exchange, headers)
    model = options.model
    found: list[TokenCounter] = []
    if endpoint == "messages":
        found.append(ServerCounter("the server's /v1/messages/count_tokens", post, partial(_anthropic, model)))
    chat = endpoint != "completions"
    told: dict[str, CountBy] = {
        "the server's /tokenize": partial(_vllm, model, chat),
        "the server's /tokenize (llama.cpp)": partial(_llama_cpp, chat),
        "the server's /tokenize (TGI)": partial(_tgi, model, chat),
    }
    found += [ServerCounter(source, post, by) for source, by in told.items()]
    return [*found, UsageCounter(exchange, endpoint, options)]


def _nobody(ask: Ask) -> tuple[PromptMessage, ...]:
    return ask.messages or ()


def _post(exchange: Exchange, headers: Mapping[str, str], path: str, body: Mapping[str, Any]) -> Any:
    status, _, reply = exchange("POST", path, orjson.dumps(body), headers)
    if status != 200:
        return None
    try:
        return orjson.loads(reply)
    except ValueError:
        return None


def _joined(messages: tuple[PromptMessage, ...]) -> str:
    return "".join(message.text for message in messages)


def _roles(messages: tuple[PromptMessage, ...]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]


def _vllm(model: str, chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    asked = {"messages": _roles(messages)} if chat else {"prompt": _joined(messages)}
    return _counted(post("/tokenize", {"model": model, **asked}))


def _llama_cpp(chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    text = _joined(messages)
    if chat:
        rendered = post("/apply-template", {"messages": _roles(messages)})
        text = text_at(rendered, "prompt") if isinstance(rendered, dict) else ""
    return _counted(post("/tokenize", {"content": text, "add_special": True})) if text else None


def _tgi(model: str, chat: bool, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    if not chat:
        return _length(post("/tokenize", {"inputs": _joined(messages)}))
    told = post("/chat_tokenize", {"model": model, "messages": _roles(messages)})
    return _length(told.get("tokenize_response")) if isinstance(told, dict) else None


def _anthropic(model: str, post: Post, messages: tuple[PromptMessage, ...]) -> int | None:
    told = post("/v1/messages/count_tokens", {"model": model, "messages": _roles(messages)})
    return count_at(told, "input_tokens") or None if isinstance(told, dict) else None


def _counted(told: object) -> int | None:
    """llama.cpp answers a question that it did not understand with no tokens at all."""
    if not isinstance(told, dict):
        return None
    return count_at(told, "count") or _length(told.get("tokens"))


def _length(tokens: object) -> int | None:
    return len(tokens) or None if isinstance(tokens, list) else None
