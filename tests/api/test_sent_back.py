"""What clients send back: replies of this and of other servers, hints and labels."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec import to_builtins

from tests.api.completions import CALL, SampleCompletion, data_of, facts_of
from tests.server.compatibility.table import PLAIN, THINKS
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ReplyHead
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError, ignoring
from twofold.api.ollama.requests import OllamaChatRequest, OllamaGenerateRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.api.prompts import Thinking

USER: Final = {"role": "user", "content": "hi"}
MARK: Final = {"cache_control": {"type": "ephemeral"}}
FACTS: Final = facts_of(PLAIN)
HEAD: Final = ReplyHead("x", 1, "m", prompts=[(5,) * 100])
TOOL: Final = {"name": "weather", "parameters": {"type": "object", "properties": {}}}


def read(reader: Any, body: dict[str, Any]) -> tuple[Any, list[str]]:
    with ignoring(unknown=False) as ignored:
        return reader.read(body), ignored.shown


def chat(*messages: Any, **fields: Any) -> tuple[Any, list[str]]:
    return read(ChatRequest, {"messages": list(messages), **fields})


def read_back(message: dict[str, Any]) -> tuple[Any, list[str]]:
    """An assistant's message as templates read it, and what was ignored."""
    request, ignored = chat(USER, {"role": "assistant", "content": "Hello."} | message, USER)
    return request.conversation.messages[1], ignored


ANSWER: Final = {"role": "assistant", "content": "Hello."}
THOUGHT: Final = ANSWER | {"reasoning_content": "A greeting."}


@pytest.mark.parametrize(
    "given",
    [
        {"reasoning": "A greeting."},
        {"reasoning_content": "A greeting.", "reasoning": "A greeting."},
        {"reasoning": None, "reasoning_content": "A greeting."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "A greeting.", "signature": None, "index": None}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "A "}, {"summary": "greeting."}]},
        {"reasoning": {"text": "A greeting."}},
        {"reasoning": [{"type": "thinking", "thinking": "A ", "signature": ""}, {"content": "greeting."}]},
        {"reasoning_content": {"type": "reasoning", "text": None, "summary": "A greeting."}, "reasoning": "Other."},
        {"reasoning_details": "A greeting."},
    ],
)
def test_reasoning_is_read_under_its_other_names(given: dict[str, Any]) -> None:
    assert read_back(given) == (THOUGHT, [])


@pytest.mark.parametrize(
    ("given", "ignored"),
    [
        (dict.fromkeys(("reasoning", "reasoning_details", "provider_specific_fields", "id", "prefix", "mood")), []),
        ({"prefix": False, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}, []),
        ({"partial": False, "images": [], "audio": [], "function_call": "", "reasoning": {"text": None}}, []),
        ({"id": "m1", "provider_specific_fields": {"a": 1}}, ["id", "provider_specific_fields"]),
        ({"annotations": [{"type": "url_citation"}], "index": 3}, ["annotations", "index"]),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, ["reasoning_details[0].data"]),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "x"}]}, ["thinking_blocks"]),
    ],
)
def test_what_servers_add_to_messages_may_come_back(given: dict[str, Any], ignored: list[str]) -> None:
    assert read_back(given) == (ANSWER, [f"messages[1].{name}" for name in ignored])


def test_what_would_change_a_prompt_is_refused_by_name() -> None:
    for given, param in (
        ({"audio": {"id": "a"}}, "messages[1].audio"),
        ({"function_call": {"name": "f"}}, "messages[1].function_call"),
        ({"images": ["aGk="]}, "messages[1].images"),
        ({"reasoning": {"effort": "low"}}, "messages[1].reasoning.effort"),
        ({"mood": "good"}, "messages[1].mood"),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[1].content[0].type"),
    ):
        with pytest.raises(FieldError) as caught:
            read_back(given)
        assert caught.value.param == param


def test_a_reply_with_calls_comes_back_as_another_server_wrote_it() -> None:
    call = {
        "id": "c",
        "index": 0,
        "type": "function",
        "function": {"name": "weather", "arguments": "{}", "provider_specific_fields": None},
        "extra_content": {"google": {"thought_signature": "x"}},
    }
    result = {"role": "tool", "tool_call_id": "c", "content": None}
    request, ignored = chat(USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result)
    assert ignored == ["messages[1].tool_calls[0].extra_content"]
    assert request.conversation.messages[2] == {"role": "tool", "tool_call_id": "c", "content": None}


@pytest.mark.parametrize("role", ["assistant", "tool", "function", "ipython"])
def test_models_and_tools_may_say_nothing(role: str) -> None:
    request, _ = chat(USER, {"role": role, "content": None}, {"role": role}, USER)
    nothing, _ = chat(USER, {"role": role, "content": ""}, {"role": role, "content": ""}, USER)
    assert request.prepare(FACTS)[0].token_ids == nothing.prepare(FACTS)[0].token_ids


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_callers_may_not(role: str) -> None:
    with pytest.raises(FieldError, match=r"messages\[1\].content is required"):
        chat(USER, {"role": role, "content": None})


def test_cache_marks_of_anthropics_are_used() -> None:
    """Wherever a client of OpenAI's puts them: on a part, a message, a tool, or the whole body."""
    part = {"type": "text", "text": "A"} | MARK
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tools = [
        {"type": "function", "function": TOOL} | MARK,
        {"type": "function", "function": TOOL | {"name": "b"} | MARK},
    ]
    for messages, fields, points in (
        ([{"role": "user", "content": ["x", part, "y"]}], {}, [CachePoint("5m", message=0, part=1)]),
        ([USER | hour, USER], {}, [CachePoint("1h", message=0)]),
        ([USER], {"tools": tools}, [CachePoint("5m", tool=0), CachePoint("5m", tool=1)]),
        ([USER, USER], hour, [CachePoint("1h", message=1)]),
    ):
        request, ignored = chat(*messages, **fields)
        assert (list(request.conversation.cache_points), ignored) == (points, [])
        assert request.prepare(FACTS)[0].options.cache_pins
    text = {"type": "input_text", "text": "A"} | hour
    response, ignored = read(ResponsesRequest, {"input": [{"role": "user", "content": [text]}]})
    assert (list(response.chat().cache_points), ignored) == ([CachePoint("1h", message=0, part=0)], [])


def test_a_mark_without_a_place_is_a_hint() -> None:
    _, ignored = read(OllamaChatRequest, {"model": "m", "messages": [USER | MARK]})
    assert ignored == ["messages[0].cache_control"]


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_prefix_of_the_reply_is_continued(name: str) -> None:
    request, ignored = chat(USER, ANSWER | {name: True})
    same, _ = chat(USER, ANSWER, continue_final_message=True)
    assert ignored == []
    assert request.prepare(FACTS)[0].token_ids == same.prepare(FACTS)[0].token_ids
    with pytest.raises(FieldError, match=rf"messages\[0\].{name} needs"):
        chat(USER | {name: True})


@pytest.mark.parametrize(
    ("reasoning", "thinking"),
    [
        ({}, Thinking()),
        ({"effort": "low"}, Thinking("on", 1024, "reasoning.effort")),
        ({"effort": "none"}, Thinking("off")),
        ({"max_tokens": 9, "summary": None}, Thinking("on", 9, "reasoning.max_tokens")),
        ({"enabled": False}, Thinking("off")),
        ({"enabled": True}, Thinking("on", needed_by="reasoning.enabled")),
    ],
)
def test_how_the_model_thinks_in_openrouters_form(reasoning: dict[str, Any], thinking: Thinking) -> None:
    request, _ = chat(USER, reasoning=reasoning)
    assert request.conversation.thinking == thinking
    request.prepare(facts_of(THINKS))
    with pytest.raises(FieldError, match="both say how"):
        chat(USER, reasoning=reasoning, reasoning_effort="low")


def test_labels_and_hints_are_named() -> None:
    _, ignored = chat(USER, store=True, metadata={"a": "b"}, user="u", prompt_cache_key="k", safety_identifier="")
    assert sorted(ignored) == ["metadata", "prompt_cache_key", "store", "user"]
    _, ignored = chat(USER, store=False, metadata={}, user=None)
    assert ignored == []
    _, ignored = read(OllamaChatRequest, {"model": "m", "messages": [USER], "options": {"num_gpu": 1, "numa": None}})
    assert ignored == ["options.num_gpu"]


def message(**fields: Any) -> tuple[Any, list[str]]:
    return read(MessagesRequest, {"model": "m", "max_tokens": 9, "messages": [USER], **fields})


def test_anthropics_fields_that_ask_for_nothing() -> None:
    tool = {"name": "weather", "input_schema": TOOL["parameters"], "defer_loading": True, "input_examples": [{}]}
    request, ignored = message(thread={"type": "create"}, tools=[tool], metadata={"user_id": "u"})
    assert len(request.conversation.tools) == 1
    assert sorted(ignored) == ["metadata.user_id", "thread", "tools[0].defer_loading", "tools[0].input_examples"]


def test_a_thread_that_goes_on_is_sent_again_as_a_whole() -> None:
    """Anthropic's client does so for this code."""
    result = {"type": "tool_result", "tool_use_id": "unknown", "content": "x"}
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(FieldError) as caught:
        message(thread=thread, messages=[{"role": "user", "content": [result]}])
    error: Any = to_builtins(AnthropicDialect().error(caught.value, "req"))
    assert error["error"]["details"] == {"error_code": "thread_not_found"}


def test_anthropics_reply_comes_back_as_a_message() -> None:
    request = MessagesRequest.read({"model": "m", "max_tokens": 9, "messages": [USER]})
    reply = data_of(request.reply(HEAD, [SampleCompletion(FACTS, f"I look.{CALL}").output], FACTS))
    text = {"type": "text", "text": "a", "citations": [{"type": "char_location"}]}
    request, ignored = message(messages=[USER, reply | {"content": [*reply["content"], text]}, USER])
    assert [turn["role"] for turn in request.conversation.messages] == ["user", "assistant", "user"]
    labels = ("id", "model", "stop_reason", "usage")
    assert {"messages[1].content[1].citations", *(f"messages[1].{name}" for name in labels)} == set(ignored)


@pytest.mark.parametrize("reader", [OllamaGenerateRequest, OllamaChatRequest])
def test_ollamas_options_may_be_at_the_top_level(reader: Any) -> None:
    body: dict[str, Any] = {"model": "m"} | (
        {"prompt": "a"} if reader is OllamaGenerateRequest else {"messages": [USER]}
    )
    request, ignored = read(reader, body | {"stop": ["x"], "temperature": 0, "num_gpu": 1})
    assert (request.params.stop_strings, request.params.temperature) == (("x",), 0)
    assert ignored == ["options.num_gpu"]
    both, _ = read(reader, body | {"stop": ["x"], "seed": 1, "options": {"stop": ["y"], "seed": None}})
    assert (both.params.stop_strings, both.params.seed) == (("y",), 1)
    with pytest.raises(FieldError, match="options must be an object"):
        read(reader, body | {"stop": ["x"], "options": 1})
    with pytest.raises(FieldError, match=r"options\.stop\[0\]"):
        read(reader, body | {"stop": [1]})


@pytest.mark.parametrize(
    "given",
    [
        {"num_ctx": 0},
        {"num_ctx": 0.0, "num_predict": 0, "seed": -1},
        {"repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0.0, "frequency_penalty": None},
    ],
)
def test_ollamas_options_at_their_defaults_ask_for_nothing(given: dict[str, Any]) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [USER | {"images": []}], "tools": []}
    request, ignored = read(OllamaChatRequest, body | {"options": given})
    plain, _ = read(OllamaChatRequest, body)
    assert request.prepare(FACTS) == plain.prepare(FACTS)
    assert ignored == []


def test_ollamas_generate_may_have_all_fields_at_their_zero() -> None:
    """Programs in Go send them so."""
    zeros = {"images": [], "context": [], "template": "", "suffix": "", "width": 0, "height": 0, "steps": 0}
    request, ignored = read(OllamaGenerateRequest, {"model": "m", "prompt": "a", **zeros})
    plain, _ = read(OllamaGenerateRequest, {"model": "m", "prompt": "a"})
    assert (request.prepare(FACTS), ignored) == (plain.prepare(FACTS), [])
