"""Which tools may be called, in all API protocols: beside a format of the text, and where a tool was omitted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.completions import facts_of
from tests.api.responses.conftest import TEMPLATE
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts
from twofold.api.fields import FieldError, ignoring
from twofold.api.ollama.requests import OllamaChatRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}}
OWN = {"name": "f", "input_schema": ARGUMENTS}
CHAT: dict[str, Any] = {"messages": HI, "tools": [FUNCTION]}
RESPONSE: dict[str, Any] = {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": ARGUMENTS}]}
MESSAGE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": HI, "tools": [OWN]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TEXT_SCHEMA = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
FORMATS: list[tuple[Any, dict[str, Any], list[dict[str, Any]], list[Any]]] = [
    (
        ChatRequest,
        CHAT,
        [
            {"response_format": JSON_SCHEMA},
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": {"regex": "a"}},
        ],
        ["required", {"type": "function", "function": {"name": "f"}}],
    ),
    (
        ResponsesRequest,
        RESPONSE,
        [{"text": TEXT_SCHEMA}, {"text": {"format": {"type": "json_object"}}}],
        ["required", {"type": "function", "name": "f"}],
    ),
    (
        MessagesRequest,
        MESSAGE,
        [{"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}],
        [{"type": "any"}, {"type": "tool", "name": "f"}],
    ),
]


@pytest.fixture(scope="module")
def model() -> ModelFacts:
    return facts_of(TEMPLATE)


def outputs(reader: Any, body: dict[str, Any], model: ModelFacts) -> StructuredOutputsParams | None:
    (job,) = reader.read(body).prepare(model)
    assert isinstance(job.params, SamplingParams)
    return job.params.structured_outputs


@pytest.mark.parametrize(("reader", "body", "formats", "choices"), FORMATS)
def test_a_required_call_comes_first(
    reader: Any, body: dict[str, Any], formats: list[Any], choices: list[Any], model: ModelFacts
) -> None:
    """A format applies to turns that answer with text: beside it a required call is the one without it."""
    for choice in choices:
        alone = outputs(reader, {**body, "tool_choice": choice}, model)
        assert alone is not None
        for given in formats:
            assert outputs(reader, {**body, **given, "tool_choice": choice}, model) == alone


@pytest.mark.parametrize(("reader", "body", "formats"), [each[:3] for each in FORMATS])
def test_a_turn_without_tools_has_the_format(
    reader: Any, body: dict[str, Any], formats: list[Any], model: ModelFacts
) -> None:
    for given in formats:
        alone = outputs(reader, {**body, **given, "tools": None}, model)
        none = {"type": "none"} if reader is MessagesRequest else "none"
        assert outputs(reader, {**body, **given, "tool_choice": none}, model) == alone is not None


@pytest.mark.parametrize(
    ("reader", "body"),
    [
        (ChatRequest, {**CHAT, "response_format": JSON_SCHEMA}),
        (ResponsesRequest, {**RESPONSE, "text": TEXT_SCHEMA}),
        (MessagesRequest, {**MESSAGE, **FORMATS[2][2][0]}),
        (OllamaChatRequest, {"model": "m", "messages": HI, "tools": [FUNCTION], "format": SCHEMA}),
        (OllamaChatRequest, {"model": "m", "messages": HI, "tools": [FUNCTION], "format": "json"}),
    ],
)
def test_a_choice_of_the_model_is_a_call_or_has_the_format(
    reader: Any, body: dict[str, Any], model: ModelFacts
) -> None:
    made = outputs(reader, body, model)
    assert made is not None
    assert made.grammar is not None
    assert made.grammar.startswith("start: calls | content\ncontent: %json {")
    assert ('"a"' in made.grammar.splitlines()[1]) == (body.get("format") != "json")


SH = {"type": "custom", "custom": {"name": "sh"}}
BASH = {"type": "bash_20250124", "name": "bash"}
FETCH = {"type": "custom", "name": "sh"}
ONE_ALLOWED = {"mode": "required", "tools": [SH]}
OMITTED: list[tuple[Any, dict[str, Any], str]] = [
    (ChatRequest, {**CHAT, "tools": [SH], "tool_choice": "required"}, "custom"),
    (ChatRequest, {**CHAT, "tools": [SH], "tool_choice": FORMATS[0][3][1]}, "f"),
    (
        ChatRequest,
        {**CHAT, "tools": [SH, FUNCTION], "tool_choice": {"type": "function", "function": {"name": "sh"}}},
        "",
    ),
    (ChatRequest, {**CHAT, "tools": [SH], "tool_choice": {"type": "allowed_tools", "allowed_tools": ONE_ALLOWED}}, ""),
    (ResponsesRequest, {**RESPONSE, "tools": [FETCH], "tool_choice": "required"}, "custom"),
    (ResponsesRequest, {**RESPONSE, "tools": [{"type": "web_search"}], "tool_choice": "required"}, "web_search"),
    (ResponsesRequest, {**RESPONSE, "tools": [FETCH], "tool_choice": {"type": "function", "name": "sh"}}, ""),
    (MessagesRequest, {**MESSAGE, "tools": [BASH], "tool_choice": {"type": "any"}}, "bash_20250124"),
    (MessagesRequest, {**MESSAGE, "tools": [BASH, OWN], "tool_choice": {"type": "tool", "name": "bash"}}, ""),
]


@pytest.mark.parametrize(("reader", "body", "said"), OMITTED, ids=range(len(OMITTED)))
def test_a_tool_that_is_omitted_is_named_where_it_must_be_called(reader: Any, body: dict[str, Any], said: str) -> None:
    with ignoring(unknown=False), pytest.raises(FieldError) as caught:
        reader.read(body)
    if said == "f":  # a tool of another name is not the cause
        assert (caught.value.param, "names 'f'" in str(caught.value)) == ("tool_choice", True)
        return
    assert caught.value.param == "tools[0].type"
    assert str(caught.value).startswith(f"tools[0].type '{said or body['tools'][0]['type']}' is not supported")


def test_without_any_tool_the_list_is_empty() -> None:
    none: list[Any] = []
    for tools in (None, none):
        with ignoring(unknown=False), pytest.raises(ParameterError, match="tools is empty") as caught:
            ChatRequest.read({**CHAT, "tools": tools, "tool_choice": "required"})
        assert caught.value.param == "tool_choice"
