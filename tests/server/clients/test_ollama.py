"""Ollama's own client with a live server: chats, texts, vectors, tools, and information about models."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import ollama
import pytest

from tests.server.clients.conftest import CODER, THINKER, TINY, Guarded
from tests.server.live import LiveServer

HI = [{"role": "user", "content": "hi"}]
EIGHT = {"num_predict": 8, "temperature": 0}
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with ollama.Client(host=server.url, timeout=30) as client:
        yield client


def test_a_chat_is_the_same_whole_and_streamed(client: Any) -> None:
    whole = client.chat(TINY, HI, options=EIGHT)
    assert whole.done
    assert (whole.done_reason, whole.eval_count) == ("length", 8)
    assert whole.prompt_eval_count > 0
    assert 0 < whole.eval_duration < whole.total_duration
    parts = list(client.chat(f"{TINY}:latest", HI, options=EIGHT, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 8


def test_a_prompt_goes_through_the_template_unless_it_is_raw(client: Any) -> None:
    chat = client.chat(TINY, [{"role": "system", "content": "short"}, *HI], options=EIGHT)
    generated = client.generate(TINY, "hi", system="short", options=EIGHT)
    assert generated.response == chat.message.content
    assert generated.prompt_eval_count == chat.prompt_eval_count
    raw = client.generate(TINY, "hi", raw=True, options=EIGHT)
    assert raw.prompt_eval_count < generated.prompt_eval_count
    streamed = client.generate(TINY, "hi", raw=True, options=EIGHT, stream=True)
    assert "".join(part.response for part in streamed) == raw.response


def test_requests_without_a_prompt_load_the_model(client: Any) -> None:
    assert client.generate(TINY).done_reason == "load"
    assert client.chat(TINY).done_reason == "load"
    assert [part.done_reason for part in client.generate(TINY, stream=True)] == ["load"]
    assert TINY + ":latest" in [model.model for model in client.ps().models]


def test_a_form(client: Any) -> None:
    reply = client.chat(TINY, HI, format=COLOUR, options={"num_predict": 200, "temperature": 0})
    assert isinstance(json.loads(reply.message.content)["ok"], bool)
    assert isinstance(json.loads(client.generate(TINY, "hi", format="json", options={"seed": 3}).response), dict)


def test_thinking_is_separate_from_the_content(client: Any) -> None:
    thought = client.chat(THINKER, HI, think=True, options={"num_predict": 8, "temperature": 0})
    assert thought.message.thinking
    assert not thought.message.content
    plain = client.chat(THINKER, HI, think=False, options=EIGHT)
    assert plain.message.content
    assert not plain.message.thinking
    parts = client.generate(THINKER, "hi", think="low", options=EIGHT, stream=True)
    assert "".join(part.thinking or "" for part in parts) == thought.message.thinking
    with pytest.raises(ollama.ResponseError, match="think is not supported") as caught:
        client.chat(TINY, HI, think=True)
    assert caught.value.status_code == 400


def test_tools_and_their_results(client: Any) -> None:
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
          city: Where.
        """
        return city

    call = {"function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    messages = [
        *HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "3"},
    ]
    with_tools = client.chat(TINY, messages, tools=[weather], options=EIGHT)
    assert with_tools.prompt_eval_count > client.chat(TINY, HI, options=EIGHT).prompt_eval_count


def test_a_completion_continues_its_prefix(client: Any) -> None:
    whole = client.chat(TINY, HI, options={"num_predict": 12, "temperature": 0}).message.content
    begun = client.chat(TINY, [*HI, {"role": "assistant", "content": "x"}], options=EIGHT)
    assert begun.prompt_eval_count == client.chat(TINY, HI, options=EIGHT).prompt_eval_count + 1
    assert whole


def test_a_suffix(client: Any) -> None:
    reply = client.generate(CODER, "def f(", suffix="):", options=EIGHT)
    assert reply.response
    assert reply.prompt_eval_count > 3


def test_log_probabilities(client: Any) -> None:
    reply = client.chat(TINY, HI, logprobs=True, top_logprobs=2, options=EIGHT)
    assert [len(entry.top_logprobs) for entry in reply.logprobs] == [2] * 8
    streamed = [
        entry
        for part in client.chat(TINY, HI, logprobs=True, options=EIGHT, stream=True)
        for entry in part.logprobs or ()
    ]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in reply.logprobs]


def test_vectors(client: Any) -> None:
    reply = client.embed(TINY, ["hi", "you", "hi"])
    assert len(reply.embeddings) == 3
    assert reply.embeddings[0] == reply.embeddings[2] != reply.embeddings[1]
    assert client.embeddings(TINY, "hi").embedding == reply.embeddings[0]
    assert client.embed(TINY, "a " * 5000).prompt_eval_count == 2048
    with pytest.raises(ollama.ResponseError, match="the input length exceeds the context length"):
        client.embed(TINY, "a " * 5000, truncate=False)


def test_models(client: Any) -> None:
    listed = {model.model: model for model in client.list().models}
    assert set(listed) == {f"{name}:latest" for name in (TINY, THINKER, CODER)}
    assert listed[f"{TINY}:latest"].details.family == "llama"
    assert "insert" in client.show(CODER).capabilities
    shown = client.show(TINY)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert "thinking" in client.show(f"{THINKER}:latest").capabilities
    with pytest.raises(ollama.ResponseError, match="Did you mean 'tiny'") as caught:
        client.show("tinny")
    assert caught.value.status_code == 404


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"options": {"temprature": 1}}, "options.temprature is not a known field"),
        ({"options": {"temperature": -1}}, "temperature must be"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p 0.5 is not supported"),
        ({"options": {"repeat_penalty": 1.2, "repeat_last_n": 8}}, "options.repeat_last_n is not supported"),
        ({"options": {"num_ctx": 2}}, "prompt too long; .* context length is 2 tokens.*raise options.num_ctx"),
        ({"keep_alive": "soon"}, "keep_alive must be"),
        ({"template": "{{ .Prompt }}"}, "template .* is not supported. The model's own"),
        ({"suffix": "b"}, "cannot fill in the middle"),
        ({"raw": True, "system": "a"}, "system cannot be used with raw"),
    ],
)
def test_unsupported_fields_are_refused(client: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ollama.ResponseError, match=said) as caught:
        client.generate(TINY, "hi", **fields)
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=said):
        list(client.generate(TINY, "hi", stream=True, **fields))


def test_coroutines(server: LiveServer) -> None:
    async def ask() -> tuple[str, str]:
        async with ollama.AsyncClient(host=server.url, timeout=30) as client:
            whole = await client.chat(TINY, HI, options=EIGHT)
            parts = [part async for part in await client.chat(TINY, HI, options=EIGHT, stream=True)]
        return whole.message.content or "", "".join(part.message.content or "" for part in parts)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_keys(guarded: Guarded) -> None:
    with ollama.Client(host=guarded.live.url, timeout=30) as client, pytest.raises(ollama.ResponseError, match="key"):
        client.chat(TINY, HI)
    headers = {"authorization": f"Bearer {guarded.keys['free']}"}
    with ollama.Client(host=guarded.live.url, timeout=30, headers=headers) as client:
        assert client.chat(TINY, HI, options={"num_predict": 1}).done


def test_bodies_as_curl_sends_them(server: LiveServer) -> None:
    body = json.dumps({"model": TINY, "prompt": "hi", "options": {"num_predict": 2}}).encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    with server.client() as client:
        reply = client.post("/api/generate", content=body, headers=kind)
        assert reply.headers["content-type"] == "application/x-ndjson"
        assert json.loads(reply.text.splitlines()[-1])["done"]
        assert client.post("/v1/completions", content=body, headers=kind).status_code == 400


def test_how_long_a_model_stays_loaded(client: Any) -> None:
    def left() -> float | None:
        model = next((model for model in client.ps().models if model.model == f"{CODER}:latest"), None)
        return None if model is None else (model.expires_at - datetime.now(UTC)).total_seconds()

    assert client.generate(CODER, "hi", keep_alive="10m", options=EIGHT).done
    assert 500 < (left() or 0) <= 600
    assert client.generate(CODER, "hi", keep_alive=-1, options=EIGHT).done
    assert (left() or 0) > 1e8
    assert client.generate(CODER, keep_alive=0).done_reason == "unload"
    until = time.monotonic() + 60
    while left() is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert left() is None


def test_only_keys_that_may_administer_say_so(guarded: Guarded) -> None:
    headers = {"authorization": f"Bearer {guarded.keys['free']}"}
    with ollama.Client(host=guarded.live.url, timeout=30, headers=headers) as client:
        assert client.generate(TINY, keep_alive=0).done
        assert [model.model for model in client.ps().models] == [f"{TINY}:latest"]
        assert client.ps().models[0].expires_at.year == 9999


def test_what_older_clients_send(server: LiveServer) -> None:
    """A tool's result with the tool's ``name``, and nothing to embed."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    counts = [
        server.post(
            "/api/chat", {"model": CODER, "messages": [*HI, call, result], "stream": False, "options": EIGHT}
        ).json()["prompt_eval_count"]
        for result in ({"role": "tool", "content": "3", key: "f"} for key in ("name", "tool_name"))
    ]
    assert counts[0] == counts[1] > 0
    assert server.post("/api/embed", {"model": TINY, "input": ""}).json()["embeddings"] == []


@pytest.mark.parametrize("given", ["300", "", "soon"])
def test_a_wrong_duration_is_refused_by_its_form(server: LiveServer, given: str) -> None:
    refused = server.post("/api/chat", {"model": TINY, "keep_alive": given})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith('keep_alive must be a number of seconds, or a duration such as "5m"')
