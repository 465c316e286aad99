"""Token counts by the endpoints of different servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from tests.bench.prompts.counters import ToyCounter
from twofold.bench.client.target import Reply
from twofold.bench.endpoints.endpoint import EndpointOptions
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.prompter import make_prompter
from twofold.bench.prompts.remote import remote_counter
from twofold.core.errors import NetworkError

OPTIONS = EndpointOptions("m", api_key="k", ignore_eos=True)


@dataclass
class FakeServer:
    """A server with the endpoints of one maker, and the toy tokenizer."""

    maker: str
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        assert (method, headers["authorization"]) == ("POST", "Bearer k")
        said = orjson.loads(body or b"")
        self.asked.append((path, said))
        told = getattr(self, "_" + self.maker)(path, said)
        if told is None and path.endswith(("completions", "messages")) and self.maker != "silent":
            told = self._answer(path, said)
        return (404, {}, b"") if told is None else (200, {}, orjson.dumps(told))

    def _vllm(self, path: str, said: dict[str, Any]) -> Any:
        if path != "/tokenize" or not {"prompt", "messages"} & said.keys():
            return None
        return {"count": _count(said), "tokens": []}

    def _sglang(self, path: str, said: dict[str, Any]) -> Any:
        return {"tokens": [1] * _count(said)} if path == "/tokenize" and "prompt" in said else None

    def _llama(self, path: str, said: dict[str, Any]) -> Any:
        if path == "/apply-template":
            return {"prompt": "".join(f"<{m['role']} x> {m['content']} y" for m in said["messages"])}
        return {"tokens": re.findall(r"\s?\S+", said.get("content", ""))} if path == "/tokenize" else None

    def _tgi(self, path: str, said: dict[str, Any]) -> Any:
        if path == "/chat_tokenize":
            return {"tokenize_response": [{}] * _count(said)}
        return [{}] * ToyCounter().of(said["inputs"]) if path == "/tokenize" and "inputs" in said else None

    def _anthropic(self, path: str, said: dict[str, Any]) -> Any:
        return {"input_tokens": _count(said)} if path == "/v1/messages/count_tokens" else None

    def _plain(self, *_: object) -> Any:
        return None

    _silent = _plain

    def _answer(self, path: str, said: dict[str, Any]) -> Any:
        assert (said["max_tokens"], said.get("stream"), said.get("ignore_eos")) == (1, None, None)
        if path == "/v1/messages":
            return {"content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": _count(said)}}
        usage = {"prompt_tokens": _count(said), "completion_tokens": 1}
        return {"choices": [{"text": "a", "message": {"content": "a"}}], "usage": usage}


def _count(said: dict[str, Any]) -> int:
    if "prompt" in said:
        return ToyCounter().of(said["prompt"])
    count = ToyCounter().count(tuple(PromptMessage(m["role"], m["content"]) for m in said["messages"]))
    assert count is not None
    return count


@pytest.mark.parametrize(
    ("maker", "endpoint", "source"),
    [
        ("vllm", "chat", "the server's /tokenize"),
        ("vllm", "completions", "the server's /tokenize"),
        ("sglang", "completions", "the server's /tokenize"),
        ("sglang", "chat", "the usage of completions"),
        ("llama", "chat", "the server's /tokenize (llama.cpp)"),
        ("llama", "completions", "the server's /tokenize (llama.cpp)"),
        ("tgi", "chat", "the server's /tokenize (TGI)"),
        ("tgi", "completions", "the server's /tokenize (TGI)"),
        ("anthropic", "messages", "the server's /v1/messages/count_tokens"),
        ("plain", "chat", "the usage of completions"),
        ("plain", "completions", "the usage of completions"),
        ("plain", "messages", "the usage of completions"),
    ],
)
def test_every_maker_is_understood(maker: str, endpoint: str, source: str) -> None:
    options = OPTIONS if endpoint != "messages" else EndpointOptions("m", api_key="k")
    server = FakeServer(maker)
    counter = remote_counter(server, endpoint, options)
    assert counter is not None
    assert counter.source == source
    prompter = make_prompter(counter, chat=endpoint != "completions", seed=0)
    assert prompter.recipe.exact
    assert counter.count(prompter(Ask(3, 0.0, 100, 1))) == 100
    assert len(server.asked) < 30


def test_a_server_that_says_nothing() -> None:
    assert remote_counter(FakeServer("silent"), "chat", OPTIONS) is None


def test_a_connection_that_breaks_is_no_count() -> None:
    def broken(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:  # noqa: ARG001
        raise NetworkError("gone")

    assert remote_counter(broken, "chat", OPTIONS) is None
