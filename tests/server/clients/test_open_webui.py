"""The calls of Open WebUI, as its routers ``openai.py`` and ``ollama.py`` make them.

It is not installed, because it depends on torch.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

TALK: Final = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]
HEADERS: Final = {
    "authorization": "Bearer none",
    "X-OpenWebUI-User-Name": "Ann%20B",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "c1",
}


def test_an_openai_connection_lists_models(server: LiveServer) -> None:
    models = server.get("/v1/models", headers=HEADERS).json()["data"]
    assert TINY in {model["id"] for model in models}


@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 0.5, "seed": 3, "stop": ["zz"], "logit_bias": {"70": -5}}])
def test_a_chat_over_openai_is_streamed_with_its_usage(server: LiveServer, more: dict[str, Any]) -> None:
    body = {"model": TINY, "messages": TALK, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"temperature": 0.8, "top_p": 0.9, "max_tokens": 8, **more}
    events = server.post("/v1/chat/completions", body, headers=HEADERS).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert any(choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("length", ["max_tokens", "max_completion_tokens"])
def test_titles_and_tags_are_asked_for_without_a_stream(server: LiveServer, length: str) -> None:
    reply = server.post("/v1/chat/completions", {"model": TINY, "messages": TALK, "stream": False, length: 8})
    assert reply.json()["choices"][0]["message"]["role"] == "assistant"


def test_an_ollama_connection_is_verified_and_lists_models(server: LiveServer) -> None:
    assert server.get("/api/version", headers=HEADERS).json()["version"]
    models = server.get("/api/tags", headers=HEADERS).json()["models"]
    assert f"{TINY}:latest" in {model["model"] for model in models}
    assert all(model["name"] and model["details"] and model["size"] for model in models)


def test_loaded_models_say_when_they_expire(server: LiveServer) -> None:
    assert server.post("/api/generate", {"model": f"{TINY}:latest"}).status_code == 200
    loaded = server.get("/api/ps", headers=HEADERS).json()["models"]
    assert f"{TINY}:latest" in {model["name"] for model in loaded}
    assert all(datetime.fromisoformat(model["expires_at"]).tzinfo for model in loaded)


def test_a_chat_over_ollama_is_streamed_as_lines(server: LiveServer) -> None:
    options = {"temperature": 0.8, "top_p": 0.9, "num_predict": 8, "num_ctx": 1024, "repeat_penalty": 1.1, "seed": 3}
    body = {"model": f"{TINY}:latest", "messages": TALK, "stream": True, "options": options, "keep_alive": "5m"}
    lines = [json.loads(line) for line in server.post("/api/chat", body, headers=HEADERS).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] > 0


def test_embeddings_of_documents_by_either_connection(server: LiveServer) -> None:
    ours = server.post("/v1/embeddings", {"model": TINY, "input": ["a", "b"]}, headers=HEADERS).json()["data"]
    theirs = server.post("/api/embed", {"model": TINY, "input": ["a", "b"]}, headers=HEADERS).json()["embeddings"]
    assert [len(each["embedding"]) for each in ours] == [len(each) for each in theirs]
