"""Requests and responses of Anthropic's messages endpoint."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.endpoints.streams import no_prompts, read, read_whole
from tests.bench.endpoints.test_openai import JSON
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, MessagesReader
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.record import UNKNOWN, RecordedResponse
from twofold.core.errors import ParameterError

START = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}
KINDS = ("content_block_delta", "content_block_start", "message_start", "message_delta")
STOP = {"type": "message_stop"}


def delta(kind: str, **fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


def ended(**usage: int | None) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage}


def test_a_streamed_message() -> None:
    response = read(
        "messages",
        START,
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        delta("text_delta", text="Hel"),
        delta("text_delta", text="lo"),
        {"type": "content_block_stop", "index": 0},
        ended(output_tokens=2, cache_read_input_tokens=4, cache_creation_input_tokens=3, input_tokens=None),
        STOP,
    )
    assert (response.text, list(response.moments)) == ("Hello", [4.0, 5.0])
    assert list(response.tokens) == [UNKNOWN, UNKNOWN]
    assert (response.prompt_tokens, response.cached_tokens, response.completion_tokens) == (17, 4, 2)
    assert (response.finish, response.done, response.pings, response.empty) == ("max_tokens", True, 1, 0)


def test_thoughts_and_calls_are_output_signatures_are_not() -> None:
    response = read(
        "messages",
        delta("thinking_delta", thinking="hmm"),
        delta("signature_delta", signature="abc"),
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "look", "input": {}}},
        delta("input_json_delta", partial_json=""),
        delta("input_json_delta", partial_json='{"a'),
    )
    assert (len(response.moments), response.empty, response.text) == (3, 2, "")


def test_only_message_stop_ends_it() -> None:
    assert not read("messages", START, delta("text_delta", text="a"), ended(output_tokens=1)).done


def test_unknown_kinds_of_events_are_ignored() -> None:
    assert read("messages", {"type": "new_thing"}, STOP).done


def test_an_error_in_the_middle() -> None:
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert read("messages", START, failed).error == "Overloaded"


def test_a_whole_message() -> None:
    content = [{"type": "text", "text": "Hi"}, {"type": "tool_use", "name": "look", "input": {"a": 1}}]
    usage = {"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 2}
    message = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    response = read_whole("messages", message)
    assert (response.text, list(response.tokens)) == ("Hi", [9])
    assert (response.prompt_tokens, response.streamed, response.done) == (7, False, True)


def test_a_whole_response_may_be_an_error_or_empty() -> None:
    assert read_whole("messages", {"type": "error", "error": {"message": "no"}}).error == "no"
    with pytest.raises(ValueError, match="content"):
        read_whole("messages", {"type": "message"})


def test_the_body_has_the_system_prompt_apart() -> None:
    endpoint = ApiEndpoint("messages", EndpointOptions("m", api_key="k"), no_prompts)
    messages = (PromptMessage("system", "Be brief."), PromptMessage("user", "Hello"))
    body = orjson.loads(endpoint.body(Ask(0, 0.0, 8, 16, messages=messages)))
    assert body["system"] == "Be brief."
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert (body["max_tokens"], body["stream"], body["temperature"]) == (16, True, 0.0)
    assert endpoint.headers["anthropic-version"] == "2023-06-01"
    assert endpoint.headers["authorization"] == "Bearer k"


def test_options_that_the_api_does_not_have_are_refused() -> None:
    with pytest.raises(ParameterError, match="messages endpoint"):
        ApiEndpoint("messages", EndpointOptions("m", ignore_eos=True), no_prompts)


@settings(max_examples=100, deadline=None)
@given(
    said=JSON, kind=st.sampled_from(["content_block_delta", "content_block_start", "message_start", "message_delta"])
)
def test_any_json_is_read_or_refused(said: object, kind: str) -> None:
    reader = MessagesReader(RecordedResponse())
    for body in (said, {"type": kind, "delta": said, "content_block": said, "message": said, "usage": said}):
        with contextlib.suppress(ValueError):
            reader.event(kind, json.dumps(body).encode(), 1.0)
            reader.whole(json.dumps({"content": said, "usage": said}).encode(), 1.0)
