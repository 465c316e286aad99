"""Bodies of /v1/responses: what is read, what is shown to the model, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert
from openai.types.responses import Response

from tests.api.completions import CALL, data_of
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion, read
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.items import CallItem, CallOutputItem, Item, ThoughtItem
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.api.prompts import NamedTool, Thinking
from twofold.core.errors import ContextLengthError, ParameterError, TwofoldError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.record import HeldPin
from twofold.core.request import RequestOptions

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
CALLED = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}'}
RETURNED = {"type": "function_call_output", "call_id": "c1", "output": "rain"}


def shown(**fields: Any) -> list[Any]:
    return list(read(**fields).chat().messages)


def test_the_defaults_are_openais() -> None:
    request = read()
    assert request.params == SamplingParams(max_tokens=None)
    assert (request.stream, request.store, request.tier, request.explain) == (False, True, "auto", False)
    assert request.request_options == RequestOptions()
    assert read(model=None).model is None


def test_fields_of_sampling_and_treatment() -> None:
    request = read(
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        max_output_tokens=7,
        stream=True,
        store=False,
        service_tier="fast",
        priority=3,
        twofold={"explain": True},
        stream_options={},
    )
    penalties: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": -0.5}
    assert request.params == SamplingParams(temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, **penalties)
    assert (request.stream, request.store, request.tier, request.explain) == (True, False, "priority", True)
    assert request.request_options == RequestOptions(priority=3)


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, StructuredOutputsParams(json=SCHEMA)),
    ],
)
def test_forms_of_the_text(given: Any, form: StructuredOutputsParams | None) -> None:
    assert read(text={"format": given}).params.structured_outputs == form


def test_log_probabilities_have_to_be_included() -> None:
    include = ["message.output_text.logprobs"]
    assert read(include=include).params.logprobs == 0
    assert read(include=include, top_logprobs=5).params.logprobs == 5
    assert read(include=[]).params.logprobs is None


@pytest.mark.parametrize(
    ("effort", "thinking"),
    [(None, Thinking()), ("none", Thinking("off")), ("low", Thinking("on", 1024, "reasoning.effort"))],
)
def test_efforts(effort: str | None, thinking: Thinking) -> None:
    assert read(reasoning={"effort": effort, "summary": "auto"}).chat().thinking == thinking


def test_tools_and_choices(facts: ModelFacts) -> None:
    other = {"type": "function", "name": "other"}
    turn = read(tools=[WEATHER, other]).chat()
    function = {"name": "weather", "parameters": WEATHER["parameters"]}
    assert turn.tools[0] == {"type": "function", "function": function}
    assert turn.choice == "auto"
    assert read(tools=[WEATHER], tool_choice="required").chat().choice == "required"
    named = read(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}).chat()
    assert named.choice == NamedTool("weather")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    request = read(tools=[WEATHER, other], tool_choice=allowed)
    some = request.chat()
    assert [tool["function"]["name"] for tool in some.tools] == ["other"]
    assert some.choice == "required"
    reply = data_of(request.reply(HEAD, [SampleCompletion(facts, "a").output], facts))
    assert (len(reply["tools"]), reply["tool_choice"]) == (2, allowed)


def test_a_text_is_a_message_of_the_user() -> None:
    assert shown() == [{"role": "user", "content": "hello"}]
    assert shown(instructions="be brief")[0] == {"role": "system", "content": "be brief"}


def test_system_texts_at_the_beginning_are_one_message() -> None:
    items = [
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
        {"role": "system", "content": "e"},
    ]
    parts = [{"type": "text", "text": text} for text in "ab"]
    assert shown(instructions="a", input=items) == [
        {"role": "system", "content": parts},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "system", "content": "e"},
    ]


def test_what_a_model_did_in_one_turn_is_one_message() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sure."}]}
    after = {"role": "assistant", "content": "Rain."}
    messages = shown(input=[{"role": "user", "content": "?"}, THOUGHT, said, CALLED, RETURNED, THOUGHT, after])
    call = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "Sure.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Rain.", "reasoning_content": "hm"},
    ]


def test_what_came_of_a_call_needs_the_call() -> None:
    with pytest.raises(ParameterError, match="no call for the function call output with call_id 'c1'"):
        shown(input=[RETURNED])
    request = read(input=[RETURNED], previous_response_id="resp_1")
    known = request.known(convert([CALLED], list[Item]), {})
    assert [message["role"] for message in known.chat().messages] == ["assistant", "tool"]


def test_sealed_reasoning_is_opened_again(facts: ModelFacts) -> None:
    request = read(include=["reasoning.encrypted_content"])
    (thought, _) = data_of(request.reply(HEAD, [SampleCompletion(facts, "<think>hm</think>yes").output], facts))[
        "output"
    ]
    sent = {name: thought[name] for name in ("type", "id", "summary", "encrypted_content")}
    assert shown(input=[{"role": "user", "content": "?"}, sent])[1]["reasoning_content"] == "hm"
    for wrong in ("gAAAAA", "twofold1:%%%", "twofold1:/w==", "twofold1:é"):
        with pytest.raises(ParameterError, match=r"input\[0\]\.encrypted_content is not from this server"):
            read(input=[{**sent, "encrypted_content": wrong}])


def test_references_are_to_be_found() -> None:
    request = read(input=[{"type": "item_reference", "id": "fc_1"}, {"id": "rs_1"}, RETURNED])
    assert request.references == ["fc_1", "rs_1"]
    known = request.known(
        [], {"fc_1": convert(CALLED | {"id": "fc_1"}, CallItem), "rs_1": convert(THOUGHT, ThoughtItem)}
    )
    assert known.references == []
    assert [type(item) for item in known.items] == [CallItem, ThoughtItem, CallOutputItem]


def test_breakpoints_of_the_prompt_cache(facts: ModelFacts) -> None:
    point = {"mode": "explicit"}
    parts = [
        {"type": "input_text", "text": "long", "prompt_cache_breakpoint": point},
        {"type": "input_text", "text": "short"},
    ]
    (job,) = read(input=[{"role": "user", "content": parts}]).prepare(facts)
    (pin,) = job.options.cache_pins
    assert facts.tokenizer.decode((job.token_ids)[: pin.tokens]) == "user: long"
    assert pin.ttl == "30m"
    (job,) = read(prompt_cache_options={"ttl": "1h"}).prepare(facts)
    assert [(pin.tokens, pin.ttl) for pin in job.options.cache_pins] == [(len(job.token_ids), "1h")]
    assert read(prompt_cache_options={"mode": "explicit"}).chat().cache_points == ()


def test_the_oldest_items_give_way_where_that_is_wanted(facts: ModelFacts) -> None:
    turns = [
        item
        for index in range(40)
        for item in ({"role": "user", "content": f"question {index} " * 20}, {"role": "assistant", "content": "yes"})
    ]
    items = [{"role": "system", "content": "rules"}, *turns, {"role": "user", "content": "last"}]
    fields: dict[str, Any] = {"input": items, "max_output_tokens": 100}
    with pytest.raises(ContextLengthError):
        read(**fields).prepare(facts)
    (job,) = read(**fields, truncation="auto").prepare(facts)
    text = facts.tokenizer.decode(job.token_ids)
    first = int(text.split("question ")[1].split()[0])
    assert text.startswith("system: rulesuser: question")
    assert text.endswith("user: lastassistant: ")
    assert facts.context - 500 < len(job.token_ids) <= facts.context - 100
    assert 0 < first < 40
    (short,) = read(truncation="auto").prepare(facts)
    assert short == read().prepare(facts)[0]


def test_the_reply_is_a_response(facts: ModelFacts) -> None:
    request = read(
        tools=[WEATHER],
        instructions="be brief",
        max_output_tokens=99,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
        user="me",
        temperature=0.5,
        max_tool_calls=3,
        text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        presence_penalty=-2,
    )
    completion = SampleCompletion(facts, f"<think>hm</think>Sure.{CALL}", cached=4, pins=(HeldPin(7, 1800.0),))
    reply = data_of(request.reply(HEAD, [completion.output], facts))
    response = Response.model_validate(reply, strict=True)
    assert (response.id, response.status, response.service_tier) == ("resp_r1", "completed", "default")
    assert (response.created_at, response.completed_at) == (HEAD.created, HEAD.created + 3)
    assert response.output_text == "Sure."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.usage is not None
    generated, thought = (
        len(completion.token_ids),
        len(facts.tokenizer.encode("<think>hm</think>", add_special_tokens=False)),
    )
    assert response.usage.to_dict() == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": 10 + generated,
    }
    assert reply["metadata"] == {"a": "b"}
    assert set(reply) - set(Response.model_fields) == {
        "store",
        "presence_penalty",
        "frequency_penalty",
    }  # of Open Responses


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("length", "incomplete", "max_output_tokens"),
        ("deadline", "incomplete", None),
        ("repetition", "incomplete", None),
        ("abort", "cancelled", None),
    ],
)
def test_responses_that_did_not_end_by_themselves(facts: ModelFacts, finish: Any, status: str, reason: Any) -> None:
    reply = data_of(read().reply(HEAD, [SampleCompletion(facts, "hel", finish).output], facts))
    response = Response.model_validate(reply, strict=True)
    assert response.status == status
    assert (response.incomplete_details.reason if response.incomplete_details else None) == reason
    assert reply["output"][0]["status"] == "incomplete"
    assert reply["completed_at"] is None


def test_output_items_can_be_sent_back_unchanged(facts: ModelFacts) -> None:
    request = read(tools=[WEATHER])
    completion = SampleCompletion(facts, f"<think>hm</think>Sure.{CALL}")
    output = data_of(request.reply(HEAD, [completion.output], facts))["output"]
    sent = [{"role": "user", "content": "?"}, *output, {**RETURNED, "call_id": output[2]["call_id"]}]
    assert [message["role"] for message in shown(input=sent)] == ["user", "assistant", "tool"]
    kept = data_of(read(input=sent).new_items(HEAD))
    assert kept[1:4] == output
    assert [item["id"] for item in kept] == ["msg_r1_i0", *(item["id"] for item in output), "fco_r1_i4"]


def test_input_tokens_are_those_of_the_prompt(facts: ModelFacts) -> None:
    (job,) = read(instructions="be brief", tools=[WEATHER]).prepare(facts)
    body = {"model": "tiny", "input": "hello", "instructions": "be brief", "tools": [WEATHER]}
    reply = data_of(InputTokensRequest.read(body).count(facts))
    assert reply == {"object": "response.input_tokens", "input_tokens": len(job.token_ids)}


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "required"),
    ({"input": []}, "input", "required"),
    ({"input": 5}, "input", "text or a list"),
    ({"input": ["a"]}, "input[0]", "an object"),
    ({"input": [{"type": "mesage"}]}, "input[0].type", "Did you mean 'message'?"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "not supported"),
    ({"input": [{"role": "usr", "content": "a"}]}, "input[0].role", "Did you mean 'user'?"),
    ({"input": [{"role": "user"}]}, "input[0].content", "required"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content", "not empty"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "not supported",
    ),
    ({"input": [{"role": "user", "content": "a", "idd": "b"}]}, "input[0].idd", "Did you mean 'id'?"),
    ({"input": [{**CALLED, "arguments": 5}]}, "input[0].arguments", "text"),
    ({"input": [{**CALLED, "namespace": "n"}]}, "input[0].namespace", "not supported"),
    ({"background": True}, "background", "not supported"),
    ({"conversation": "conv_1"}, "conversation", "not supported"),
    ({"prompt": {"id": "p"}}, "prompt", "not supported"),
    ({"moderation": {}}, "moderation", "not supported"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
    ({"include": ["file_search_call.results"]}, "include[0]", "not supported"),
    ({"top_logprobs": 3}, "top_logprobs", "include"),
    ({"top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "not supported"),
    ({"tools": [WEATHER, WEATHER]}, "tools", "twice"),
    ({"tools": [WEATHER] * 129}, "tools", "at most 128"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "1 to 128 characters"),
    ({"tools": [{"type": "function", "name": "a", "parametrs": {}}]}, "tools[0].parametrs", "Did you mean"),
    ({"tool_choice": "any"}, "tool_choice", "auto or none or required"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "'function', 'allowed_tools'"),
    ({"reasoning": {"effort": "hihg"}}, "reasoning.effort", "Did you mean 'high'?"),
    ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "not supported"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
    ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "text.format.name", "required"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text or json_object or json_schema"),
    ({"truncation": "atuo"}, "truncation", "Did you mean 'auto'?"),
    ({"metadata": {"a": 1}}, "metadata.a", "at most 512 characters"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
    ({"user": "u" * 513}, "user", "512"),
    ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
    ({"max_tool_calls": 0}, "max_tool_calls", "from 1"),
    ({"temperature": -1}, "temperature", "at least 0"),
    ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl", "30m"),
    ({"prompt_cache_retention": "12h"}, "prompt_cache_retention", "in_memory"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage", "not a known field"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not supported"),
    ({"service_tier": "scale"}, "service_tier", "not supported"),
    ({"max_tokens": 5}, "max_tokens", "Did you mean"),
    ({"messages": []}, "messages", "not a known field"),
    ({"twofold": {"explane": True}}, "twofold.explane", "Did you mean 'explain'?"),
]


@pytest.mark.parametrize(("fields", "param", "said"), IMPOSSIBLE, ids=str)
def test_what_is_impossible_is_refused_by_name(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        ResponsesRequest.read({"model": "tiny", "input": "hello", **fields})
    assert caught.value.param == param
    assert said in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("body", [None, [], "text", 5, {"input": {"a": 1}}])
def test_bodies_that_are_none(body: Any) -> None:
    with pytest.raises(TwofoldError):
        ResponsesRequest.read(body)
