"""OpenAI's client and /v1/responses: create, stream, store, continue, list, delete."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import openai
import pytest

from tests.server.clients.conftest import THINKER, TINY, async_openai
from tests.server.clients.test_openai_chat import CITY, City, Place
from tests.server.live import LiveServer

ASK: Final[dict[str, Any]] = {"model": TINY, "input": "hi", "max_output_tokens": 12, "temperature": 0}
WEATHER: Final[Any] = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
CALLED: Final[Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False} | {
    "max_output_tokens": 200
}


def test_a_response(client: Any) -> None:
    response = client.responses.create(**ASK, instructions="be brief", metadata={"trip": "7"}, user="me")
    assert response.id.startswith("resp_")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text
    assert response.usage.output_tokens == 12
    assert response.usage.total_tokens == response.usage.input_tokens + 12
    assert (response.metadata, response.instructions) == ({"trip": "7"}, "be brief")


def test_a_stream_says_the_same(client: Any) -> None:
    whole = client.responses.create(**ASK)
    with client.responses.create(**ASK, stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_the_stream_helper(server: LiveServer, client: Any) -> None:
    with client.responses.stream(**ASK) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    whole = client.responses.create(**ASK).output_text
    assert snapshots[-1] == whole

    async def told() -> str:
        async with async_openai(server) as remote, remote.responses.stream(**ASK) as events:
            return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])

    assert asyncio.run(told()) == whole


def test_a_response_continues_another(client: Any) -> None:
    first = client.responses.create(**ASK)
    second = client.responses.create(**ASK, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    by_hand = client.responses.create(**ASK | {"input": [_said("hi"), *first.output, _said("hi")]})
    assert by_hand.output_text == second.output_text
    items = client.responses.input_items.list(second.id, order="asc")
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.id for item in client.responses.input_items.list(second.id, order="asc", limit=1)] == [
        item.id for item in items
    ], "pages follow each other"


def _said(text: str) -> Any:
    return {"role": "user", "content": text}


def test_a_streamed_one_is_kept_too(client: Any) -> None:
    with client.responses.create(**ASK, stream=True) as stream:
        told = list(stream)[-1].response
    assert client.responses.retrieve(told.id).output_text == told.output_text
    again = client.responses.create(**ASK, previous_response_id=told.id)
    assert again.usage.input_tokens > told.usage.input_tokens


def test_deleted_responses_are_not_found(client: Any) -> None:
    kept = client.responses.create(**ASK)
    with pytest.raises(openai.ConflictError, match="background"):
        client.responses.cancel(kept.id)
    client.responses.delete(kept.id)
    for lost in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            lost(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ASK, previous_response_id=kept.id)
    unkept = client.responses.create(**ASK, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_form(client: Any) -> None:
    asked = ASK | {"max_output_tokens": 300}
    parsed = client.responses.parse(**asked, text_format=City).output_parsed
    assert parsed.city in Place
    with client.responses.stream(**asked, text_format=City) as stream:
        assert stream.get_final_response().output_parsed == parsed
    text = client.responses.create(**asked, text={"format": {"type": "json_object"}}).output_text
    assert text.lstrip().startswith("{")


def test_a_call_and_what_came_of_it(client: Any) -> None:
    first = client.responses.create(**ASK | CALLED)
    (call,) = first.output
    assert (call.type, call.name, first.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Ulm", "Bonn")
    with client.responses.stream(**ASK | CALLED) as stream:
        kinds = {event.type for event in stream}
        (again,) = stream.get_final_response().output
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert again.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(**ASK | {"input": [result], "tools": [WEATHER]}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    named = {"type": "function", "name": "weather"}
    assert client.responses.create(**ASK | CALLED | {"tool_choice": named}).output[0].name == "weather"


def test_reasoning(client: Any) -> None:
    asked = ASK | {"model": THINKER, "max_output_tokens": 300, "reasoning": {"effort": "minimal"}}
    with client.responses.stream(**asked) as stream:
        *events, last = stream
    spent = last.response.usage
    assert "response.reasoning_text.delta" in {event.type for event in events}
    assert last.response.output[0].type == "reasoning"
    assert 0 < spent.output_tokens_details.reasoning_tokens <= spent.output_tokens
    with pytest.raises(openai.BadRequestError, match=r"reasoning\.effort"):
        client.responses.create(**ASK, reasoning={"effort": "high"})


def test_log_probabilities(client: Any) -> None:
    response = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
    (message,) = response.output
    assert len(message.content[0].logprobs) == 12
    assert [len(entry.top_logprobs) for entry in message.content[0].logprobs] == [2] * 12


def test_tokens_are_counted_before(client: Any) -> None:
    counted = client.responses.input_tokens.count(model=TINY, input="hi").input_tokens
    assert counted == client.responses.create(**ASK).usage.input_tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("conversation", "conv_1"),
        ("tool_choice", {"type": "web_search_preview"}),
        ("prompt", {"id": "p"}),
    ],
)
def test_errors_name_the_field(client: Any, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ASK | {field: value})
    assert (caught.value.param or "").startswith(field)
