"""OpenAI's client and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import Any, Final

import openai
import pytest
from pydantic import BaseModel

from tests.server.clients.conftest import CODER, THINKER, TINY, async_openai
from tests.server.live import LiveServer

SAY_HI: Final[list[Any]] = [{"role": "user", "content": "hi"}]
ASK: Final[dict[str, Any]] = {"model": TINY, "messages": SAY_HI, "max_completion_tokens": 12, "temperature": 0}
CITY: Final = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Final[Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
TIME: Final[Any] = {"type": "function", "function": {"name": "time", "parameters": CITY}}


class Place(Enum):
    ULM = "Ulm"
    BONN = "Bonn"


class City(BaseModel):
    city: Place


def streamed(client: Any, **more: Any) -> list[Any]:
    with client.chat.completions.create(**ASK | more, stream=True) as stream:
        return list(stream)


def text_of(chunks: list[Any], choice: int = 0) -> str:
    deltas = (given for chunk in chunks for given in chunk.choices if given.index == choice)
    return "".join(given.delta.content or "" for given in deltas)


def stop_of(client: Any) -> str:
    """A text from the middle of the completion; the client's helper raises for cut completions."""
    whole = client.chat.completions.create(**ASK).choices[0].message.content
    return str(whole[6:8])


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [TINY, THINKER, CODER]
    assert client.models.retrieve(TINY).object == "model"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("tyni")


def test_a_whole_answer(client: Any) -> None:
    completion = client.chat.completions.create(**ASK)
    (choice,) = completion.choices
    assert completion.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert completion.usage.completion_tokens == 12
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 12
    assert completion.service_tier == "default"


def test_a_stream_says_the_same(client: Any) -> None:
    chunks = streamed(client)
    assert text_of(chunks) == client.chat.completions.create(**ASK).choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_ends_a_stream_that_asks_for_it(client: Any) -> None:
    *chunks, last = streamed(client, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks)


def test_a_prediction_changes_no_completion(client: Any) -> None:
    """How much is drafted depends on the machine; what is counted of it, on the engine's record."""
    text = client.chat.completions.create(**ASK).choices[0].message.content
    content: list[Any] = [{"type": "text", "text": text[:5]}, {"type": "text", "text": text[5:]}]
    given: dict[str, Any] = {"prediction": {"type": "content", "content": content}}
    found = client.chat.completions.create(**ASK | given, extra_body={"twofold": {"explain": True}})
    (prompt,) = found.model_extra["twofold"]["prompts"]
    details = found.usage.completion_tokens_details
    assert found.choices[0].message.content == text
    assert details.accepted_prediction_tokens == prompt["speculation"]["accepted_prediction_tokens"]
    assert details.rejected_prediction_tokens == prompt["speculation"]["rejected_prediction_tokens"]
    *chunks, last = streamed(client, **given, stream_options={"include_usage": True})
    assert text_of(chunks) == text
    assert last.usage.completion_tokens_details.accepted_prediction_tokens is not None
    plain = client.chat.completions.create(**ASK, extra_body={"speculation": False, "twofold": {"explain": True}})
    assert plain.model_extra["twofold"]["prompts"][0]["speculation"]["drafted_tokens"] == 0
    with pytest.raises(openai.BadRequestError, match=r"prediction\.type"):
        client.chat.completions.create(**ASK, prediction={"type": "file", "content": text})


def test_the_stream_helper(client: Any) -> None:
    stopped = ASK | {"stop": stop_of(client)}
    with client.chat.completions.stream(**stopped) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == client.chat.completions.create(**stopped).choices[0].message.content


def test_the_asynchronous_client(server: LiveServer, client: Any) -> None:
    stop = stop_of(client)

    async def both() -> tuple[str, str]:
        async with async_openai(server) as remote:
            whole = await remote.chat.completions.create(**ASK)
            async with await remote.chat.completions.create(**ASK, stream=True) as stream:
                chunks = [chunk async for chunk in stream]
            async with remote.chat.completions.stream(**ASK | {"stop": stop}) as helped:
                final = await helped.get_final_completion()
        assert whole.choices[0].message.content.startswith(final.choices[0].message.content + stop)
        return whole.choices[0].message.content, text_of(chunks)

    expected = client.chat.completions.create(**ASK).choices[0].message.content
    assert asyncio.run(both()) == (expected, expected)


def test_many_at_once(server: LiveServer) -> None:
    async def all_of_them() -> list[Any]:
        async with async_openai(server) as remote:
            asked = (remote.chat.completions.create(**ASK) for _ in range(8))
            return list(await asyncio.gather(*asked))

    assert len({completion.choices[0].message.content for completion in asyncio.run(all_of_them())}) == 1


def test_several_answers(client: Any) -> None:
    asked = {"temperature": 1, "n": 3, "seed": 7}
    completion = client.chat.completions.create(**ASK | asked)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in completion.choices}) > 1
    assert completion.usage.completion_tokens == sum(
        len(choice.logprobs.content)
        for choice in client.chat.completions.create(**ASK | asked | {"logprobs": True}).choices
    )
    chunks = streamed(client, **asked)
    assert [text_of(chunks, index) for index in range(3)] == [each.message.content for each in completion.choices]


def test_a_seed_reproduces_a_completion(client: Any) -> None:
    def answer(seed: int) -> str:
        asked = ASK | {"temperature": 1, "seed": seed}
        return str(client.chat.completions.create(**asked).choices[0].message.content)

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_a_stop_ends_the_answer_before_it(client: Any) -> None:
    whole, stop = client.chat.completions.create(**ASK).choices[0].message.content, stop_of(client)
    choice = client.chat.completions.create(**ASK, stop=[stop]).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", whole[: whole.index(stop)])
    assert text_of(streamed(client, stop=stop)) == choice.message.content


def test_logprobs(client: Any) -> None:
    choice = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 12
    assert all(entry.token == entry.top_logprobs[0].token for entry in entries), "the first is the likeliest"
    assert [len(entry.top_logprobs) for entry in entries] == [3] * 12
    chunks = streamed(client, logprobs=True, top_logprobs=3)
    told = [entry for chunk in chunks for entry in (chunk.choices[0].logprobs or _NONE).content]
    assert [entry.logprob for entry in told] == [entry.logprob for entry in entries]


class _NONE:
    content: Final[list[Any]] = []


def test_logit_bias_decides(client: Any) -> None:
    token = 70
    choice = client.chat.completions.create(
        **ASK, logit_bias={str(token): 100}, extra_body={"return_token_ids": True}
    ).choices[0]
    assert choice.model_extra["token_ids"] == [token] * 12


def test_json_of_any_kind(client: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    content = client.chat.completions.create(**ASK | {"response_format": schema, "max_completion_tokens": 60})
    assert json.loads(content.choices[0].message.content)["city"] in ("Ulm", "Bonn")
    content = client.chat.completions.create(
        **ASK | {"response_format": {"type": "json_object"}, "max_completion_tokens": 30}
    )
    assert content.choices[0].message.content.lstrip().startswith("{")


def test_parsing_into_a_type(client: Any) -> None:
    asked = ASK | {"max_completion_tokens": 60}
    message = client.chat.completions.parse(**asked, response_format=City).choices[0].message
    assert message.parsed.city in Place
    with client.chat.completions.stream(**asked, response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == message.parsed


def test_the_client_refuses_to_parse_a_cut_completion(client: Any) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            **ASK | {"max_completion_tokens": 13, "logit_bias": {"10": 100}}, response_format=City
        )


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_tool_that_must_be_called(client: Any, choice: Any) -> None:
    asked: Any = {
        "tools": [WEATHER, TIME],
        "tool_choice": choice,
        "parallel_tool_calls": choice != "required",  # a named tool is called once all the same
        "max_completion_tokens": 120,
    }
    given = client.chat.completions.create(**ASK | asked).choices[0]
    (call,) = given.message.tool_calls
    assert given.finish_reason == "tool_calls"
    assert call.function.name in ("weather", "time") if choice == "required" else call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Ulm", "Bonn")
    with client.chat.completions.stream(**ASK | asked) as stream:
        kinds = {event.type for event in stream}
        (again,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert again.function.arguments == call.function.arguments


def test_a_call_and_its_result_go_back(client: Any) -> None:
    asked = ASK | {"tools": [WEATHER], "tool_choice": "required", "max_completion_tokens": 120}
    first = client.chat.completions.create(**asked).choices[0].message
    (call, *_) = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*SAY_HI, first, result] if len(first.tool_calls) == 1 else [*SAY_HI, first.model_dump(), result]
    second = client.chat.completions.create(**ASK | {"messages": messages, "tools": [WEATHER]})
    assert second.usage.prompt_tokens > 40
    assert second.choices[0].finish_reason == "length"


def test_tools_that_may_be_called(client: Any) -> None:
    choice = client.chat.completions.create(**ASK, tools=[WEATHER], tool_choice="auto").choices[0]
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "length")
    without = client.chat.completions.create(**ASK, tools=[WEATHER], tool_choice="none")
    assert without.usage.prompt_tokens == client.chat.completions.create(**ASK).usage.prompt_tokens


def test_tool_calls_are_parsed_into_pydantic_models(client: Any) -> None:
    tool = openai.pydantic_function_tool(City, name="weather")
    asked = ASK | {"max_completion_tokens": 120, "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = client.chat.completions.parse(**asked, tools=[tool]).choices[0].message.tool_calls
    assert call.function.parsed_arguments.city in Place


def test_thinking_and_its_budget(client: Any) -> None:
    asked: Any = ASK | {"model": THINKER, "max_completion_tokens": 40, "extra_body": {"thinking_token_budget": 5}}
    completion = client.chat.completions.create(**asked)
    details = completion.usage.completion_tokens_details
    assert completion.choices[0].message.model_extra["reasoning_content"]
    assert 5 <= details.reasoning_tokens < 5 + len("</think>\n") + 1
    low = client.chat.completions.create(**asked | {"extra_body": {}, "reasoning_effort": "minimal"})
    assert low.usage.completion_tokens_details.reasoning_tokens == 40, "its budget is larger than the answer"
    chunks = streamed(client, **asked | {"stream_options": {"include_usage": True}})
    assert chunks[-1].usage.completion_tokens_details == details
    assert text_of(chunks) == completion.choices[0].message.content


def test_effort_needs_a_model_that_thinks(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="reasoning_effort is not supported by this model") as caught:
        client.chat.completions.create(**ASK, reasoning_effort="high")
    assert (caught.value.param, caught.value.code) == ("reasoning_effort", "unsupported_parameter")
    assert client.chat.completions.create(**ASK, reasoning_effort="none").choices


@pytest.mark.parametrize(
    ("asked", "given"), [("auto", "default"), ("default", "default"), ("flex", "flex"), ("priority", "priority")]
)
def test_service_tiers(client: Any, asked: Any, given: str) -> None:
    assert client.chat.completions.create(**ASK, service_tier=asked).service_tier == given


def test_a_prompt_that_stays_cached(client: Any) -> None:
    asked: Any = ASK | {
        "messages": [{"role": "user", "content": "Tell me of the river and the sea. " * 8}],
        "prompt_cache_options": {"ttl": "30m"},
        "max_completion_tokens": 2,
    }
    first, second = (client.chat.completions.create(**asked).usage for _ in range(2))
    prompt, details = first.prompt_tokens, second.prompt_tokens_details
    assert first.prompt_tokens_details.cached_tokens < 16
    assert first.prompt_tokens_details.cache_write_tokens + first.prompt_tokens_details.cached_tokens > prompt - 16
    assert prompt - 16 <= details.cached_tokens < prompt
    assert details.cache_write_tokens == 0


def test_a_completion_continues_its_prefix(client: Any) -> None:
    """As vLLM's continue_final_message: the prompt is that of the question, followed by the prefix."""
    asked = {"model": TINY, "max_tokens": 8, "temperature": 0}
    question, beginning = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "the river"}
    more = {"return_token_ids": True}
    plain = client.chat.completions.create(**asked, messages=[question], extra_body=more)
    more["continue_final_message"] = True
    begun = client.chat.completions.create(**asked, messages=[question, beginning], extra_body=more)
    prompt = plain.prompt_token_ids
    assert begun.prompt_token_ids[: len(prompt)] == prompt
    assert len(begun.prompt_token_ids) > len(prompt)
    told = client.completions.create(**asked, prompt=begun.prompt_token_ids)
    assert told.choices[0].text == begun.choices[0].message.content
    for wrong in ({"messages": [question]}, {"extra_body": {**more, "add_generation_prompt": True}}):
        fields = {"messages": [question, beginning], "extra_body": more, **wrong}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**asked, **fields)
        assert caught.value.param == "continue_final_message"
