"""Errors in OpenAI's client: its exceptions, retries and time limits, and early disconnects."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
import openai
import pytest

from tests.server.clients.conftest import TINY, Guarded, async_openai
from tests.server.live import LiveServer

SAY_HI: Final = [{"role": "user", "content": "hi"}]
ASK: Final[dict[str, Any]] = {"model": TINY, "messages": SAY_HI, "max_completion_tokens": 4, "temperature": 0}
LONG: Final[Any] = ASK | {"max_completion_tokens": 8000, "extra_body": {"ignore_eos": True}}
MAX_S: Final = 60.0


@contextmanager
def busy(guarded: Guarded) -> Iterator[None]:
    """A context in which the only slot and the whole waiting queue are taken."""
    with guarded.openai() as client, guarded.openai("other") as other:
        streams = [client.chat.completions.create(**LONG, stream=True)]
        next(iter(streams[0]))
        waiting = threading.Thread(target=_ask_and_leave, args=(other,))
        waiting.start()
        _until_one_waits(guarded)
        try:
            yield
        finally:
            streams[0].close()
            waiting.join()


def _ask_and_leave(client: Any) -> None:
    client.chat.completions.create(**ASK)


def _until_one_waits(guarded: Guarded) -> None:
    until = time.monotonic() + MAX_S
    while waiting(guarded) < 1:
        assert time.monotonic() < until
        time.sleep(0.02)


def waiting(guarded: Guarded, name: str = "vllm:num_requests_waiting{") -> float:
    """How many requests wait, as the metrics say; they are rendered once a second."""
    page = guarded.live.get("/metrics", headers={"authorization": f"Bearer {guarded.keys['free']}"}).text
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(name)]
    return sum(map(float, found))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"n": 17}, "n"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_bad_requests_name_the_field(client: Any, change: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK | change)
    error = caught.value
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert error.request_id


def test_errors_name_the_closest_field(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Did you mean 'temperature'"):
        client.chat.completions.create(**ASK, extra_body={"temprature": 1})


def test_too_long_a_prompt(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK | {"messages": [{"role": "user", "content": "river " * 4000}]})
    assert caught.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 2048 tokens. However, your messages resulted in " in str(
        caught.value
    )


def test_an_unknown_model(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ASK | {"model": "tyni"})
    assert caught.value.code == "model_not_found"


def test_an_unknown_path(client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat", model="x")


def test_a_schema_that_is_none(client: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no-such-type"}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASK, response_format=schema)


def test_a_port_without_a_server_is_a_connection_error() -> None:
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9/v1", max_retries=0)
    with client, pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_errors_of_streams_are_the_same(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK | {"temperature": -1}, stream=True)
    assert caught.value.param == "temperature"


def test_a_body_that_is_too_large(client: Any) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**ASK | {"messages": [{"role": "user", "content": "x" * (5 << 20)}]})
    assert caught.value.status_code == 413


def test_a_wrong_key(guarded: Guarded) -> None:
    with guarded.openai("wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_tier_that_the_key_has_not(guarded: Guarded) -> None:
    with guarded.openai("modest") as client, pytest.raises(openai.PermissionDeniedError, match="priority"):
        client.chat.completions.create(**ASK, service_tier="priority")


def test_a_quota_that_is_used_up(guarded: Guarded) -> None:
    with guarded.openai("counted") as client:
        raw = client.chat.completions.with_raw_response.create(**ASK)
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**ASK)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_retry_after_is_honoured(guarded: Guarded) -> None:
    """A quota of one request per two seconds: the client waits as Retry-After says, and then gets its completion."""
    _drain(guarded)
    with guarded.openai("hasty", max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(**ASK)
    assert 1 <= raw.retries_taken <= 2
    assert raw.parse().choices


def _drain(guarded: Guarded) -> None:
    """Uses up the key's requests; those for an unknown model count, too."""
    with guarded.openai("hasty") as client:
        for _ in range(80):
            try:
                client.chat.completions.create(**ASK | {"model": "none"})
            except openai.NotFoundError:
                continue
            except openai.RateLimitError:
                return
    raise AssertionError("the quota held for 80 requests")


def test_a_full_server(guarded: Guarded) -> None:
    with busy(guarded), guarded.openai() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ASK)
        assert caught.value.status_code == 503
        assert caught.value.code == "overloaded"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120


def test_requests_to_a_full_server_are_retried(guarded: Guarded) -> None:
    with guarded.openai(max_retries=3) as client:
        with busy(guarded):
            answer = threading.Thread(target=lambda: told.append(client.chat.completions.create(**ASK)))
            told: list[Any] = []
            answer.start()
            time.sleep(0.3)
            assert told == []
        answer.join(MAX_S)
    assert told[0].choices[0].message.content


def test_a_client_timeout_ends_the_request(guarded: Guarded) -> None:
    with guarded.openai(timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**LONG)
    _until_idle(guarded)


def test_disconnecting_from_a_stream_ends_its_request(guarded: Guarded) -> None:
    with guarded.openai() as client:
        with client.chat.completions.create(**LONG, stream=True) as stream:
            next(iter(stream))
        began = time.monotonic()
        assert client.chat.completions.create(**ASK).choices, "the only place is free again"
        assert time.monotonic() - began < 8
    _until_idle(guarded)


def test_cancelling_a_task_ends_its_request(guarded: Guarded) -> None:
    async def leave() -> None:
        async with async_openai(guarded.live, api_key=guarded.keys["free"]) as remote:
            task = asyncio.create_task(remote.chat.completions.create(**LONG))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await remote.chat.completions.create(**ASK)).choices

    asyncio.run(leave())
    _until_idle(guarded)


def _until_idle(guarded: Guarded) -> None:
    until = time.monotonic() + MAX_S
    while waiting(guarded, "vllm:num_requests_running{"):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_responses_of_other_tenants_are_not_found(guarded: Guarded) -> None:
    with guarded.openai() as mine, guarded.openai("other") as other:
        response = mine.responses.create(model=TINY, input="hi", max_output_tokens=4)
        file = mine.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            other.files.retrieve(file.id)


def test_a_record_of_what_it_cost(client: Any, server: LiveServer) -> None:
    raw = client.chat.completions.with_raw_response.create(**ASK, extra_body={"twofold": {"explain": True}})
    explained = raw.parse().model_extra["twofold"]
    kept = httpx2.get(f"{server.url}/v1/twofold/requests/{raw.request_id}").json()
    assert kept["id"] == explained["id"] == raw.request_id
    assert kept["prompts"][0]["decode"]["steps"] >= 3
