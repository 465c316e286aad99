"""Responses, their items and the events of their streams have every member that Open Responses requires."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.completions import CALL, data_of, events
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion, read, streamed
from tests.api.responses.open_responses import REQUIRED, faults, kinds_of
from twofold.api.base import ModelFacts
from twofold.core.errors import WorkerError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
BODIES: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 0.5, "frequency_penalty": -1, "top_p": 0, "instructions": "be brief", "metadata": {"a": "b"}},
    {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "reasoning": {"effort": "low"}},
    {"text": {"format": {"type": "json_object"}}, "tools": [WEATHER], "tool_choice": ALLOWED},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}, "store": False},
    {"tools": [WEATHER], "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_tool_calls": 1},
]
TEXT = f"<think>hm</think>Sure.{CALL}"


@pytest.mark.parametrize("finish", ["stop", "length", "deadline", "abort"])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_every_required_member_is_there(facts: ModelFacts, body: dict[str, Any], finish: Any) -> None:
    request = read(**body)
    completion = SampleCompletion(facts, TEXT, finish, logprobs="include" in body)
    assert faults("response", data_of(request.reply(HEAD, [completion.output], facts))) == []
    for event in events(streamed(request, completion)):
        assert faults("event", event) == []


def test_every_input_item_has_its_members() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    outputs: list[Any] = ["rain", [{"type": "input_text", "text": "rain"}]]
    items: list[Any] = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "d"}]},
        call,
        *({"type": "function_call_output", "call_id": "c", "output": output} for output in outputs),
    ]
    listed = data_of(read(input=items).new_items(HEAD))
    assert len(listed) == len(items)
    for item in listed:
        assert faults("item", item) == []


def test_a_failed_response_has_them_too(facts: ModelFacts) -> None:
    streamer = read().streamer(HEAD, facts)
    for event in events(streamer.open() + streamer.fail(WorkerError("It ended."), "req_1")):
        assert faults("event", event) == []


def test_the_table_sees_all_that_a_stream_has(facts: ModelFacts) -> None:
    """A kind of event that is new here must be in the table, and a wrong one must show."""
    seen = {name for finish in ("stop", "length") for name in _kinds(facts, finish)}
    assert {"event response.completed", "event response.incomplete", "item reasoning", "part reasoning_text"} <= seen
    assert seen <= REQUIRED.keys()
    reply = data_of(read().reply(HEAD, [SampleCompletion(facts, "hi").output], facts))
    del reply["presence_penalty"], reply["output"][0]["content"][0]["annotations"]
    reply["top_p"] = "1"
    assert faults("response", reply) == [
        ".output[0].content[0].annotations is missing",
        ".top_p is not of type number: '1'",
        ".presence_penalty is missing",
    ]


def _kinds(facts: ModelFacts, finish: Any) -> set[str]:
    return kinds_of(events(streamed(read(tools=[WEATHER]), SampleCompletion(facts, TEXT, finish))))


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_are_sampled_with_and_told(facts: ModelFacts, name: str) -> None:
    request = read(**{name: 0.5})
    (job,) = request.prepare(facts)
    assert getattr(job.params, name) == 0.5
    completion = SampleCompletion(facts, "hi")
    replies = [data_of(request.reply(HEAD, [completion.output], facts))]
    replies += [event["response"] for event in events(streamed(request, completion)) if "response" in event]
    assert {reply[name] for reply in replies} == {0.5}
    assert len(replies) == 4
