"""What is left out of a request with a warning, and what stays an error."""

from __future__ import annotations

from typing import Any

import pytest

from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.fields import MAX_IGNORED, FieldError, ignoring
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.core.errors import ParameterError

SAID = [{"role": "user", "content": "hi"}]
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
TOOL = {"type": "function", "name": "f"}
OWN = {"name": "f", "input_schema": {"type": "object"}}
CASES: list[tuple[Any, dict[str, Any], Any]] = [
    (ChatRequest, {"messages": SAID, "tools": [{"type": "custom", "custom": {"name": "x"}}, CHAT_TOOL]}, "custom"),
    (ResponsesRequest, {"input": "hi", "tools": [{"type": "namespace", "name": "x", "tools": []}, TOOL]}, "namespace"),
    (ResponsesRequest, {"input": "hi", "tools": [{"type": "web_search"}, TOOL]}, "web_search"),
    (ResponsesRequest, {"input": "hi", "tools": [{"type": "local_shell"}, TOOL]}, "local_shell"),
    (ResponsesRequest, {"input": "hi", "tools": [{"type": "mcp", "server_label": "x"}, TOOL]}, "mcp"),
    (
        MessagesRequest,
        {"model": "m", "messages": SAID, "max_tokens": 8, "tools": [{"type": "bash_20250124", "name": "bash"}, OWN]},
        "bash_20250124",
    ),
]


def tools_of(request: Any) -> list[str]:
    conversation = request.chat() if isinstance(request, ResponsesRequest) else request.conversation
    return [tool["function"]["name"] for tool in conversation.tools]


@pytest.mark.parametrize(("reader", "body", "kind"), CASES, ids=lambda case: str(case)[:40])
def test_tools_that_cannot_be_offered_are_left_out(reader: Any, body: dict[str, Any], kind: str) -> None:
    with ignoring(unknown=False) as left_out:
        assert tools_of(reader.read(body)) == ["f"]
    assert left_out.shown == [f"tools[0] of type {kind}"]
    with pytest.raises(FieldError, match="not supported") as caught:
        reader.read(body)
    assert caught.value.param.startswith("tools[0].type")


@pytest.mark.parametrize(
    ("reader", "body"),
    [
        (ChatRequest, {**CASES[0][1], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}),
        (ResponsesRequest, {**CASES[2][1], "tool_choice": {"type": "web_search"}}),
        (ResponsesRequest, {**CASES[2][1], "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
        (ResponsesRequest, {**CASES[4][1], "tool_choice": {"type": "mcp", "server_label": "x"}}),
    ],
)
def test_the_choice_of_such_a_tool_is_an_error_that_names_it(reader: Any, body: dict[str, Any]) -> None:
    with ignoring(unknown=True), pytest.raises(ParameterError) as caught:
        reader.read(body)
    assert caught.value.param == "tools[0].type"


def test_allowed_tools_may_name_such_tools_beside_others() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, TOOL]}
    with ignoring(unknown=False):
        assert tools_of(ResponsesRequest.read({**CASES[2][1], "tool_choice": choice})) == ["f"]


def test_a_cache_point_on_such_a_tool_lies_behind_the_one_before() -> None:
    marked = {"type": "web_search_20250305", "name": "w", "cache_control": {"type": "ephemeral"}}
    for tools, places in (([OWN, marked], [0]), ([marked, OWN], [])):
        with ignoring(unknown=False):
            request = MessagesRequest.read({"model": "m", "messages": SAID, "max_tokens": 8, "tools": tools})
        assert [point.tool for point in request.conversation.cache_points] == places


def test_unknown_fields_are_left_out_where_the_server_takes_them() -> None:
    body = {"messages": [{**SAID[0], "mood": "good"}], "temprature": 1, **{f"x{n}": 1 for n in range(100)}}
    with ignoring(unknown=True) as left_out:
        ChatRequest.read(body)
    assert left_out.shown[:2] == ["messages[0].mood", "temprature"]
    assert len(left_out.shown) == MAX_IGNORED
    with ignoring(unknown=False), pytest.raises(FieldError, match="not a known field"):
        ChatRequest.read(body)
    with ignoring(unknown=True), pytest.raises(ParameterError, match="temperature"):
        ChatRequest.read({"messages": SAID, "temperature": "hot"})


def test_labels_are_taken() -> None:
    labels = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}
    ChatRequest.read({"messages": SAID, **labels})
    ResponsesRequest.read({"input": "hi", **labels, "client_metadata": {"x-codex-installation-id": "1"}})


@pytest.mark.parametrize(("reader", "body"), [(ChatRequest, {"messages": SAID}), (ResponsesRequest, {"input": "hi"})])
def test_metadata_has_openais_limits(reader: Any, body: dict[str, Any]) -> None:
    reader.read({**body, "metadata": {f"{n:064}": "v" * 512 for n in range(16)}})
    wrong: list[tuple[Any, str]] = [
        ({str(n): "" for n in range(17)}, "metadata"),
        ({"k" * 65: ""}, f"metadata.{'k' * 64}"),
        ({"k": "v" * 513}, "metadata.k"),
        ({"k": 1}, "metadata.k"),
        (["k"], "metadata"),
    ]
    for given, param in wrong:
        with pytest.raises(FieldError) as caught:
            reader.read({**body, "metadata": given})
        assert caught.value.param.startswith(param)
        assert len(str(caught.value)) < 300
    with pytest.raises(FieldError, match=r"at most 16 .* not 17 entries"):
        reader.read({**body, "metadata": wrong[0][0]})


@pytest.mark.parametrize("choice", [{"type": "web_search"}, {"type": "custom", "name": "y"}])
def test_the_choice_of_a_tool_that_is_not_there_is_named_itself(choice: dict[str, Any]) -> None:
    tools = [{"type": "custom", "name": "x"}, {"type": "mcp", "server_label": "web_search"}, TOOL]
    with ignoring(unknown=True), pytest.raises(FieldError) as caught:
        ResponsesRequest.read({"input": "hi", "tools": tools, "tool_choice": choice})
    assert caught.value.param.startswith("tool_choice")
