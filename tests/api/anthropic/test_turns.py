"""System, messages and tools of Anthropic's bodies, as turns of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.anthropic.conftest import WEATHER, read
from twofold.api.fields import FieldError
from twofold.api.prompts import NamedTool

USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Ulm"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny"}


def turns(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in read(messages=list(messages), **fields).conversation.messages]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def refused(**fields: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        read(**fields)
    return caught.value


def test_text_is_text_in_either_form() -> None:
    assert turns(user("hi")) == turns(user([{"type": "text", "text": "hi"}])) == [user("hi")]


def test_several_blocks_are_parts() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert turns(user(blocks)) == [user(blocks)]


def test_turns_of_one_role_in_a_row_are_one() -> None:
    parts = [{"type": "text", "text": text} for text in "abc"]
    assert turns(user("a"), user(parts[1:])) == [user(parts)]


@pytest.mark.parametrize("system", ["Be kind.", [{"type": "text", "text": "Be kind."}]])
def test_system_is_the_first_message(system: Any) -> None:
    assert turns(user("hi"), system=system) == [{"role": "system", "content": "Be kind."}, user("hi")]


def test_system_messages_may_be_among_others() -> None:
    later = {"role": "system", "content": "Now in French."}
    assert turns(user("hi"), later)[1] == later


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=0af3;"


@pytest.mark.parametrize(
    "system",
    [
        HEADER + "\nBe kind.",
        [{"type": "text", "text": HEADER}, {"type": "text", "text": "Be kind."}],
        [
            {"type": "text", "text": HEADER, "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
        [{"type": "text", "text": HEADER + "\n" + HEADER + "\n\nBe kind."}],
    ],
)
def test_the_billing_header_is_no_part_of_the_prompt(system: Any) -> None:
    request = read(system=system)
    assert request.conversation.messages[0] == {"role": "system", "content": "Be kind."}
    assert request.conversation.cache_points == ()


def test_a_system_prompt_that_is_only_the_header_is_none() -> None:
    assert turns(user("hi"), system=[{"type": "text", "text": HEADER}]) == [user("hi")]


def test_calls_and_their_results() -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    looked = assistant([{"type": "text", "text": "I look."}, USE])
    assert turns(user("hi"), looked, user([RESULT, {"type": "text", "text": "And now?"}])) == [
        user("hi"),
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_call_id": "toolu_1"},
        user("And now?"),
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}]}, "a"),
        ({"is_error": True}, "Error: Sunny"),
        ({"is_error": True, "content": None}, "Error: "),
    ],
)
def test_forms_of_results(fields: dict[str, Any], content: str) -> None:
    assert turns(user("hi"), assistant([USE]), user([RESULT | fields]))[2]["content"] == content


def test_thinking_is_shown_to_the_model_and_redacted_thinking_is_not() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"}
    hidden = {"type": "redacted_thinking", "data": "AAAA"}
    said = assistant([thought, hidden, {"type": "text", "text": "Yes."}])
    assert turns(user("hi"), said, user("ok"))[1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }


def test_tools_have_the_shape_that_templates_read() -> None:
    function = {"name": "weather", "description": WEATHER["description"], "parameters": WEATHER["input_schema"]}
    assert read(tools=[WEATHER]).conversation.tools == ({"type": "function", "function": function},)
    strict = read(tools=[WEATHER | {"type": "custom", "strict": True}]).conversation.tools[0]
    assert strict["function"]["strict"] is True


@pytest.mark.parametrize(
    ("given", "choice", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "weather"}, NamedTool("weather"), True),
        ({"type": "none"}, "none", True),
        (None, "auto", True),
    ],
)
def test_tool_choice(given: Any, choice: Any, parallel: bool) -> None:
    conversation = read(tools=[WEATHER], tool_choice=given).conversation
    assert (conversation.choice, conversation.parallel) == (choice, parallel)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([user([{"type": "image", "source": {}}])], "messages[0].content[0].type"),
        ([user([{"type": "document", "source": {}}])], "messages[0].content[0].type"),
        ([user([{"type": "search_result"}])], "messages[0].content[0].type"),
        ([user([USE])], "messages[0].content[0].type"),
        ([user([{"type": []}])], "messages[0].content[0].type"),
        ([user([{"text": "hi"}])], "messages[0].content[0].type"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "text", "text": 7}])], "messages[0].content[0].text"),
        ([user([{"type": "text", "text": "a", "txt": 1}])], "messages[0].content[0].txt"),
        ([user(["hi"])], "messages[0].content[0]"),
        ([user(7)], "messages[0].content"),
        ([user(None)], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "name": "me"}], "messages[0].name"),
        ([user([RESULT])], "messages[0].content[0].tool_use_id"),
        ([user("a"), assistant([USE | {"input": "x"}]), user("b")], "messages[1].content[0].input"),
        ([user("a"), assistant([USE | {"caller": {"type": "code_execution_20250825"}}]), user("b")],
         "messages[1].content[0].caller"),
        ([user("a"), assistant([USE]), user([RESULT | {"content": [{"type": "image"}]}])],
         "messages[2].content[0].content[0].type"),
        ([user("a"), assistant("b ")], "messages[1].content"),
        ([user("a"), assistant([{"type": "text", "text": "b\n"}])], "messages[1].content"),
        ([user("a"), assistant([{"type": "text", "text": "b"}, {"type": "text", "text": ""}])], "messages[1].content"),
        ([user("a"), assistant("b"), assistant("")], "messages[2].content"),
        ([user("a"), assistant([USE])], "messages[1].content"),
        ([user("a")] * 4097, "messages"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_are_refused_by_name(messages: Any, param: str) -> None:
    assert refused(messages=messages).param == param


def test_a_last_message_of_the_assistant_begins_the_completion() -> None:
    begun = read(messages=[user("a"), assistant("b")]).conversation
    assert begun.continues
    assert begun.messages[-1] == assistant("b")
    empty = read(messages=[user("a"), assistant("")]).conversation
    assert (empty.continues, len(empty.messages)) == (False, 1)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert refused(messages=[user("a"), assistant("b")], thinking=thinking, max_tokens=2048).param == "messages"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ([WEATHER] * 129, "tools"),
        ([WEATHER, WEATHER], "tools[1].name"),
        ([WEATHER | {"name": ""}], "tools[0].name"),
        ([{"name": "weather"}], "tools[0].input_schema"),
        ([WEATHER | {"input_schema": []}], "tools[0].input_schema"),
        ([WEATHER | {"descripton": "x"}], "tools[0].descripton"),
    ],
)
def test_tools_that_cannot_be_are_refused_by_name(tools: Any, param: str) -> None:
    assert refused(tools=tools).param == param


@pytest.mark.parametrize("kind", ["web_search_20250305", "bash_20250124", "computer_20251124", "memory_20250818"])
def test_tools_of_the_service_are_refused_with_their_type(kind: str) -> None:
    assert kind in str(refused(tools=[{"type": kind, "name": "x"}]))


def test_an_unknown_result_names_the_nearest_call() -> None:
    messages = [user("a"), assistant([USE]), user([RESULT | {"tool_use_id": "toolu_l"}])]
    assert refused(messages=messages).hint == "Did you mean 'toolu_1'?"
