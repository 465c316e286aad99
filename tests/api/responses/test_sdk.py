"""OpenAI's own client against our bytes: it parses, accumulates and types every reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from tests.api.completions import CALL, data_of
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion, streamed
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.core.errors import WorkerError

TOOLS: Any = [{**WEATHER, "strict": False, "description": "Tells the weather."}]
MakeClient = Callable[..., openai.OpenAI]


@pytest.fixture
def client(facts: ModelFacts) -> MakeClient:
    """``client(text, finish="stop")``: every response is this text. Replies are validated strictly."""

    def make(text: str, finish: Any = "stop", *, fails: bool = False) -> openai.OpenAI:
        def reply_to(sent: httpx2.Request) -> httpx2.Response:
            body = json.loads(sent.content)
            if sent.url.path.endswith("/input_tokens"):
                return httpx2.Response(200, json=data_of(InputTokensRequest.read(body).count(facts)))
            request = ResponsesRequest.read(body)
            completion = SampleCompletion(facts, text, finish, request.params.logprobs is not None)
            if not request.stream:
                return httpx2.Response(200, json=data_of(request.reply(HEAD, [completion.output], facts)))
            raw = _failing(request, completion) if fails else streamed(request, completion)
            return httpx2.Response(200, content=raw, headers={"content-type": "text/event-stream"})

        transport = httpx2.MockTransport(reply_to)
        return openai.OpenAI(
            api_key="k",
            base_url="http://test/v1",
            http_client=httpx2.Client(transport=transport),
            _strict_response_validation=True,
        )

    return make


def _failing(request: ResponsesRequest, completion: SampleCompletion) -> bytes:
    streamer = request.streamer(HEAD, completion.facts)
    return (
        streamer.open() + streamer.take(0, next(completion.deltas)) + streamer.fail(WorkerError("It ended."), "req_1")
    )


class City(BaseModel):
    city: str


def test_a_text(client: MakeClient) -> None:
    response = client("hello there").responses.create(model="tiny", input="hi", instructions="be brief")
    assert (response.output_text, response.status) == ("hello there", "completed")


def test_a_stream(client: MakeClient) -> None:
    with client(f"<think>hm</think>Sure.\n{CALL}").responses.stream(model="tiny", input="hi", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert response.output_text == "Sure."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert json.loads(getattr(response.output[2], "arguments", "")) == {"city": "Ulm"}


def test_snapshots_grow_as_the_text_does(client: MakeClient) -> None:
    with client("hello there").responses.stream(model="tiny", input="hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert snapshots[-1] == "hello there"
    assert all("hello there".startswith(snapshot) for snapshot in snapshots)


@pytest.mark.parametrize("stream", [False, True])
def test_a_form(client: MakeClient, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "hi", "text_format": City}
    if stream:
        with client('{"city": "Ulm"}').responses.stream(**asked) as opened:
            parsed = opened.get_final_response().output_parsed
    else:
        parsed = client('{"city": "Ulm"}').responses.parse(**asked).output_parsed
    assert parsed == City(city="Ulm")


def test_a_stream_that_was_cut_short(client: MakeClient) -> None:
    stream = client("hello", "length").responses.create(model="tiny", input="hi", stream=True, max_output_tokens=5)
    last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_stream_that_failed(client: MakeClient) -> None:
    last = list(client("hello", fails=True).responses.create(model="tiny", input="hi", stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("server_error", "It ended.")


def test_log_probabilities(client: MakeClient) -> None:
    response = client("hello").responses.create(
        model="tiny", input="hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(entry.token for entry in part.logprobs) == "hello"
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * len(part.logprobs)


def test_input_tokens(client: MakeClient) -> None:
    counted = client("").responses.input_tokens.count(model="tiny", input="hello", tools=TOOLS)
    assert counted.input_tokens > 10


def test_a_turn_of_a_coding_agent(client: MakeClient) -> None:
    stream = client(f"<think>hm</think>{CALL}").responses.create(
        model="tiny",
        instructions="You are a coding agent.",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox: none"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list the files"}]},
        ],
        tools=TOOLS,
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="b9f4",
    )
    response = list(stream)[-1].response  # type: ignore[union-attr]
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
