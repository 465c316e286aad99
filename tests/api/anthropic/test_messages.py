"""What Anthropic's bodies ask for beside messages and tools, and what is refused by name."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.anthropic.claude_code import later_turn
from tests.api.anthropic.conftest import WEATHER, body, read
from tests.api.completions import data_of
from twofold.api.anthropic.messages import CountTokensRequest, MessagesRequest
from twofold.api.base import ModelFacts
from twofold.api.fields import FieldError
from twofold.api.prompts import Thinking
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = {"type": "json_schema", "schema": SCHEMA}


def test_the_defaults_are_anthropics() -> None:
    request = read()
    assert request.params == SamplingParams(temperature=1, max_tokens=100)
    assert (request.model, request.stream, request.tier, request.explain) == ("tiny", False, "auto", False)
    assert request.conversation.thinking == Thinking()


def test_fields_of_sampling() -> None:
    request = read(temperature=0, top_p=0.5, top_k=7, stop_sequences=["a", "b"])
    assert request.params == SamplingParams(temperature=0, top_p=0.5, top_k=7, stop=["a", "b"], max_tokens=100)


def test_tiers_stream_and_explanations() -> None:
    request = read(stream=True, service_tier="standard_only", twofold={"explain": True})
    assert (request.stream, request.tier, request.explain) == (True, "default", True)
    assert read(service_tier="auto").tier == "auto"


@pytest.mark.parametrize(
    ("thinking", "read_as"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, Thinking("on", 2048)),
        ({"type": "adaptive"}, Thinking("on")),
        ({"type": "disabled"}, Thinking("off")),
    ],
)
def test_thinking(thinking: dict[str, Any], read_as: Thinking) -> None:
    assert read(thinking=thinking).conversation.thinking == read_as


@pytest.mark.parametrize(
    ("effort", "thinking", "budget"),
    [
        ("low", None, 1024),
        ("medium", {"type": "adaptive"}, 4096),
        ("medium", {"type": "enabled", "budget_tokens": 2048}, 2048),
        ("low", {"type": "enabled", "budget_tokens": 2048}, 1024),
        ("max", None, None),
        ("low", {"type": "disabled"}, None),
    ],
)
def test_effort_limits_thinking(effort: str, thinking: Any, budget: int | None) -> None:
    assert read(output_config={"effort": effort}, thinking=thinking).conversation.thinking.budget == budget


def test_a_budget_limits_the_section_of_models_that_think_and_others_keep_to_it(
    plain: ModelFacts, thinker: ModelFacts
) -> None:
    request = read(thinking={"type": "enabled", "budget_tokens": 2048})
    (with_section,), (without,) = request.prepare(thinker), request.prepare(plain)
    assert isinstance(with_section.params, SamplingParams)
    assert isinstance(without.params, SamplingParams)
    assert with_section.params.thinking is not None
    assert with_section.params.thinking.budget == 2048
    assert without.params.thinking is None


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORM}}, {"output_format": FORM}])
def test_forms(fields: dict[str, Any]) -> None:
    assert read(**fields).params.structured_outputs == StructuredOutputsParams(json=SCHEMA)


def test_a_named_tool_becomes_a_form(plain: ModelFacts) -> None:
    (job,) = read(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}).prepare(plain)
    assert isinstance(job.params, SamplingParams)
    assert job.params.structured_outputs is not None
    with pytest.raises(ParameterError, match="wether"):
        read(tools=[WEATHER], tool_choice={"type": "tool", "name": "wether"}).prepare(plain)


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}, "betas": ["prompt-caching-2024-07-31"]},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}},
        {"context_management": {}},
        {"speed": "standard", "mcp_servers": [], "container": None, "fallbacks": []},
        {"diagnostics": {"previous_message_id": None}, "stop_sequences": [], "tools": []},
    ],
)
def test_fields_that_change_no_completion_are_accepted(fields: dict[str, Any]) -> None:
    taken, least = read(**fields), read()
    assert (taken.conversation, taken.params, taken.tier) == (least.conversation, least.params, least.tier)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"max_token": 5}, "max_token"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a" * 257]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"metadata": {"user": "u"}}, "metadata.user"),
        ({"metadata": []}, "metadata"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_format": FORM, "output_config": {"format": FORM}}, "output_format"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
        (
            {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "none"}}]}},
            "context_management.edits[0].keep",
        ),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"betas": "x"}, "betas"),
        ({"twofold": {"explian": True}}, "twofold.explian"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("value", [None, [], "x", 7, {}])
def test_any_body_is_read_or_refused(value: object) -> None:
    for request in (MessagesRequest, CountTokensRequest):
        with pytest.raises(FieldError):
            request.read(value)


NAMES = st.sampled_from(["type", "text", "tool_use", "x"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def replaced(value: Any, data: st.DataObject) -> Any:
    """The value with junk in the place of something in it."""
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 4)):
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        copied = copy(value)
        copied[key] = replaced(value[key], data)
        return copied
    return data.draw(JUNK)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_junk_anywhere_is_read_or_refused_in_few_words(data: st.DataObject) -> None:
    refused: ParameterError | None = None
    try:
        MessagesRequest.read(replaced(later_turn(), data))
    except ParameterError as error:
        refused = error
    assert refused is None or len(f"{refused} {refused.hint}") < 1000


def test_tokens_are_counted_as_the_prompt_has_them(plain: ModelFacts) -> None:
    fields = {"system": "Be kind.", "tools": [WEATHER], "cache_control": {"type": "ephemeral"}}
    request = CountTokensRequest.read(body(max_tokens=None, **fields))
    (job,) = read(**fields).prepare(plain)
    assert request.count(plain) == len(job.token_ids)
    assert data_of(request.reply(12)) == {"input_tokens": 12}


def test_counting_gives_beta_clients_the_tokens_before_edits() -> None:
    request = CountTokensRequest.read(body(max_tokens=None, context_management={"edits": []}))
    assert data_of(request.reply(12)) == {"input_tokens": 12, "context_management": {"original_input_tokens": 12}}


def test_counting_accepts_no_fields_of_sampling() -> None:
    with pytest.raises(FieldError) as caught:
        CountTokensRequest.read(body())
    assert caught.value.param == "max_tokens"
