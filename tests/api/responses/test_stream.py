"""Streams of responses: every event in its place, and the same reply in the end as without a stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.completions import CALL, data_of, events
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion, read, streamed
from twofold.api.base import ModelFacts
from twofold.core.errors import ParameterError, QuotaError, WorkerError

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
THOUGHT = f"<think>\nhm\n</think>\n\nSure.\n{CALL}\n{CALL}"


def kinds(sent: list[dict[str, Any]]) -> list[str]:
    """Types of events, with runs of deltas as one."""
    found: list[str] = []
    for event in sent:
        kind = event["type"].removeprefix("response.")
        if not (found and found[-1] == kind and kind.endswith("delta")):
            found.append(kind)
    return found


def test_the_events_of_a_text(facts: ModelFacts) -> None:
    sent = events(streamed(read(), SampleCompletion(facts, "hello there")))
    assert kinds(sent) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert "".join(event.get("delta", "") for event in sent) == "hello there"
    assert sent[-1]["response"]["output"][0]["content"][0]["text"] == "hello there"


def test_the_events_of_thinking_and_calls(facts: ModelFacts) -> None:
    sent = events(streamed(read(tools=[WEATHER]), SampleCompletion(facts, THOUGHT)))
    item = ["output_item.added", "content_part.added"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds(sent)[2:-1] == [
        *item,
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *item,
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *call,
        *call,
    ]
    places = [event["output_index"] for event in sent if event["type"] == "response.output_item.added"]
    assert places == [0, 1, 2, 3]
    output = sent[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert len({item["id"] for item in output}) == 4
    assert output[2]["call_id"] != output[3]["call_id"]
    assert output[2]["arguments"].replace(" ", "") == '{"city":"Ulm"}'


@pytest.mark.parametrize("text", ["", " \n", "hello", THOUGHT, "<think>\nnever ends", f"{CALL}\n"])
@pytest.mark.parametrize("finish", ["stop", "length", "deadline"])
def test_every_event_is_one_that_the_sdk_knows(facts: ModelFacts, text: str, finish: Any) -> None:
    for event in events(streamed(read(tools=[WEATHER]), SampleCompletion(facts, text, finish))):
        EVENT.validate_python(event, strict=True)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("text", ["", "hello wörld", THOUGHT, f"a{CALL}b", "<think>only"])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_stream_ends_with_the_reply(facts: ModelFacts, text: str, finish: Any, logprobs: bool) -> None:
    include = ["message.output_text.logprobs"] if logprobs else []
    request = read(tools=[WEATHER], include=[*include, "reasoning.encrypted_content"])
    completion = SampleCompletion(facts, text, finish, logprobs)
    whole = data_of(request.reply(HEAD, [completion.output], facts))
    sent = events(streamed(request, completion))
    assert sent[-1]["response"] == whole
    assert sent[-1]["type"] == f"response.{whole['status']}"
    items = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert items == whole["output"]
    Response.model_validate(sent[-1]["response"], strict=True)


def test_log_probabilities_are_those_of_the_text_alone(facts: ModelFacts) -> None:
    request = read(tools=[WEATHER], include=["message.output_text.logprobs"], top_logprobs=1)
    sent = events(streamed(request, SampleCompletion(facts, f"<think>hm</think>abc{CALL}", logprobs=True)))
    (done,) = [event for event in sent if event["type"] == "response.output_text.done"]
    assert "".join(entry["token"] for entry in done["logprobs"]) == "abc"
    assert all(len(entry["top_logprobs"]) == 1 for entry in done["logprobs"])
    deltas = [event["logprobs"] for event in sent if event["type"] == "response.output_text.delta"]
    assert [entry for entries in deltas for entry in entries] == done["logprobs"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerError("It ended."), "server_error"),
        (QuotaError("Enough.", retry_after_s=1), "rate_limit_exceeded"),
        (ParameterError("No.", param="input"), "invalid_prompt"),
    ],
)
def test_a_failure_is_the_last_event(facts: ModelFacts, error: Any, code: str) -> None:
    streamer = read().streamer(HEAD, facts)
    completion = SampleCompletion(facts, "hello there")
    raw = streamer.open() + streamer.take(0, next(completion.deltas)) + streamer.fail(error, "req_1")
    sent = events(raw)
    assert kinds(sent)[-1] == "failed"
    assert sent[-1]["response"]["error"]["code"] == code
    for event in sent:
        EVENT.validate_python(event, strict=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", CALL, "a", " ", "\n", "<tool_call>", "{", "ü"]), max_size=8))
def test_events_of_any_completion_are_in_order(facts: ModelFacts, parts: list[str]) -> None:
    request, completion = read(tools=[WEATHER]), SampleCompletion(facts, "".join(parts), "length")
    sent = events(streamed(request, completion))
    opened = [event["output_index"] for event in sent if event["type"] == "response.output_item.added"]
    closed = [event["output_index"] for event in sent if event["type"] == "response.output_item.done"]
    assert opened == closed == list(range(len(opened)))
    assert sent[-1]["response"]["output"] == data_of(request.reply(HEAD, [completion.output], facts))["output"]
    for index, item in enumerate(sent[-1]["response"]["output"]):
        texts = [event["delta"] for event in sent if event.get("output_index") == index and "delta" in event]
        content = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(texts) == content


def test_extras_go_under_our_own_name(facts: ModelFacts) -> None:
    completion = SampleCompletion(facts, "hello")
    streamer = read().streamer(HEAD, facts)
    sent = events(
        streamer.open()
        + b"".join(streamer.take(0, d) for d in completion.deltas)
        + streamer.close([completion.output], {"a": 1})
    )
    assert sent[-1]["response"]["twofold"] == {"a": 1}
