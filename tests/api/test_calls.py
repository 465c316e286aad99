"""Calls in replies: a named tool is called once, and the first chunk of a streamed call has empty arguments."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.api.completions import CALL, SampleCompletion, data_of, events, facts_of
from tests.server.compatibility.table import PLAIN
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ReplyHead
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest

FACTS: Final = facts_of("<tool_call>" + PLAIN)
HEAD: Final = ReplyHead("x", 1, "m", prompts=[(5,) * 100])
MESSAGES: Final = [{"role": "user", "content": "hi"}]
SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
OWN: Final = {"name": "weather", "input_schema": SCHEMA}
TOOL: Final = {"name": "weather", "parameters": SCHEMA}
CHAT: Final[dict[str, Any]] = {"messages": MESSAGES, "tools": [{"type": "function", "function": TOOL}]}
RESPONSE: Final[dict[str, Any]] = {"input": "hi", "tools": [{"type": "function"} | TOOL]}
MESSAGE: Final[dict[str, Any]] = {"model": "m", "max_tokens": 99, "messages": MESSAGES, "tools": [OWN]}
NAMED_TOOL: Final[list[tuple[Any, dict[str, Any]]]] = [
    (ChatRequest, CHAT | {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    (ResponsesRequest, RESPONSE | {"tool_choice": {"type": "function", "name": "weather"}}),
    (MessagesRequest, MESSAGE | {"tool_choice": {"type": "tool", "name": "weather"}}),
]
SEVERAL: Final = SampleCompletion(FACTS, f"{CALL}\n{CALL}")


def called(text: str) -> int:
    """How many calls an encoded reply has."""
    return text.count('"tool_use"') or text.count('"type":"function_call"') or text.count('"type":"function"')


@pytest.mark.parametrize(("reader", "body"), NAMED_TOOL)
def test_a_named_tool_is_called_exactly_once(reader: Any, body: dict[str, Any]) -> None:
    (job,) = reader.read(body).prepare(FACTS)
    tools = [{"type": "function", "function": TOOL}]
    assert job.params.structured_outputs == FACTS.format.call_grammar(tools, parallel=False)
    reply = data_of(reader.read(body).reply(HEAD, [SEVERAL.output], FACTS))
    assert (
        called(json.dumps(reply.get("choices") or reply.get("output") or reply["content"], separators=(",", ":"))) == 1
    )


@pytest.mark.parametrize(("reader", "body"), NAMED_TOOL)
def test_tools_that_are_not_named_may_be_called_several_times(reader: Any, body: dict[str, Any]) -> None:
    required = {"type": "any"} if reader is MessagesRequest else "required"
    request = reader.read(body | {"tool_choice": required})
    reply = data_of(request.reply(HEAD, [SEVERAL.output], FACTS))
    assert (
        called(json.dumps(reply.get("choices") or reply.get("output") or reply["content"], separators=(",", ":"))) == 2
    )


def test_a_streamed_call_begins_with_empty_arguments() -> None:
    """However many tokens one delta has: here all of them, or one."""
    request = ChatRequest.read(CHAT | {"stream": True, "tool_choice": "required"})
    streamer = request.streamer(HEAD, FACTS)
    whole = list(SEVERAL.deltas)
    joined = b"".join(streamer.take(0, delta) for delta in whole)
    streamer = request.streamer(HEAD, FACTS)
    text = "".join(delta.text for delta in whole)
    at_once = streamer.take(0, type(whole[-1])("r1", 0, text, (1,), finish_reason="stop"))
    for raw in (joined, at_once):
        chunks = [json.loads(event.removeprefix("data: ")) for event in raw.decode().split("\n\n")[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert all(len(delta.get("tool_calls", [0])) == 1 for delta in deltas)
        firsts = [call for call in calls if "id" in call]
        assert [call["function"] for call in firsts] == [{"name": "weather", "arguments": ""}] * 2
        for number in (0, 1):
            pieces = [call["function"]["arguments"] for call in calls if call["index"] == number]
            assert json.loads("".join(pieces)) == {"city": "Ulm"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("reader", "body"), NAMED_TOOL[1:])
def test_other_streams_begin_calls_empty(reader: Any, body: dict[str, Any]) -> None:
    found = events(SEVERAL.streamed(reader.read(body | {"stream": True}), HEAD))
    begun = [
        event.get("item") or event.get("content_block")
        for event in found
        if "_start" in event["type"] or "item.added" in event["type"]
    ]
    (call,) = [item for item in begun if item]
    assert call.get("arguments", "") == ""
    assert call.get("input", {}) == {}
