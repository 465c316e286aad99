"""Chats: their tools, how long they may think, what of them stays cached."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.completions import facts_of
from tests.api.test_openai import HELLO, TOOL, chat
from twofold.api.base import ModelFacts
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.chat import EFFORTS
from twofold.api.prompts import NamedTool, Thinking
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.text.parsers.format import CompletionFormat
from twofold.text.templates.builtin_templates import BUILTIN_TEMPLATES
from twofold.text.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> ModelFacts:
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), 4096, 8)


def test_tools_are_shown_unless_none_may_be_called(model: ModelFacts) -> None:
    def shown(**fields: Any) -> str:
        (job,) = chat(**fields).prepare(model)
        return model.tokenizer.decode(job.token_ids)

    assert "weather" in shown(tools=[TOOL])
    assert shown(tools=[TOOL]) == shown(tools=[TOOL], tool_choice="auto")
    assert shown(tools=[TOOL], tool_choice="none") == shown(tools=[]) == shown()
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
    other = {"type": "function", "function": {"name": "other"}}
    assert shown(tools=[TOOL, other], tool_choice=allowed) == shown(tools=[TOOL])


def test_a_call_that_must_be_made_has_its_form(model: ModelFacts) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        (job,) = chat(tools=[TOOL], tool_choice=choice).prepare(model)
        assert isinstance(job.params, SamplingParams)
        assert job.params.structured_outputs is not None
    assert chat(tools=[TOOL], tool_choice=choice).conversation.choice == NamedTool("weather")


def test_a_tool_may_be_called_required(model: ModelFacts) -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "required"}}]
    (job,) = chat(tools=tools, tool_choice={"type": "function", "function": {"name": "required"}}).prepare(model)
    assert isinstance(job.params, SamplingParams)
    assert job.params.structured_outputs is not None
    grammar = str(job.params.structured_outputs.grammar)
    assert "required" in grammar
    assert "weather" not in grammar


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "required"}, "tools is empty"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weathr"}}}, "'weather'"),
    ],
)
def test_calls_that_cannot_be_made(fields: dict[str, Any], message: str, model: ModelFacts) -> None:
    with pytest.raises(ParameterError) as caught:
        chat(**fields).prepare(model)
    assert message in f"{caught.value} {caught.value.hint}"


def test_how_long_a_model_may_think() -> None:
    assert chat(reasoning_effort="low").conversation.thinking == EFFORTS["low"]
    assert chat(reasoning_effort="none").conversation.thinking == Thinking("off")
    exactly = Thinking("on", 7, "thinking_token_budget")
    assert chat(thinking_token_budget=7).conversation.thinking == exactly
    assert chat(reasoning_effort="high", thinking_token_budget=7).conversation.thinking == exactly


def test_a_model_that_does_not_think_refuses_to(model: ModelFacts) -> None:
    with pytest.raises(FieldError, match="reasoning_effort is not supported by this model") as caught:
        chat(reasoning_effort="high").prepare(model)
    assert caught.value.code == "unsupported_parameter"
    assert chat(reasoning_effort="none").prepare(model) == chat().prepare(model)


@pytest.mark.parametrize("content", ["<think>hm", ["<think>hm"], ["<think>hm", {"type": "text", "text": "so"}]])
def test_a_continued_message_may_end_inside_the_thinking_section(content: Any) -> None:
    messages = [*HELLO, {"role": "assistant", "content": content}]
    request = chat(messages=messages, continue_final_message=True, thinking_token_budget=5)
    (job,) = request.prepare(facts_of(BUILTIN_TEMPLATES["chatml"] + "{# <think></think> #}"))
    assert isinstance(job.params, SamplingParams)
    assert job.params.thinking is not None
    assert job.params.thinking.start == ()


def test_what_shall_stay_cached() -> None:
    assert chat(prompt_cache_options={"ttl": "30m"}).conversation.cache_points == (CachePoint("30m"),)
    assert chat(prompt_cache_options={"ttl": "1h", "mode": "explicit"}).conversation.cache_points == ()
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    marked = chat(messages=[{"role": "user", "content": [part, {"type": "text", "text": "b"}]}]).conversation
    assert marked.cache_points == (CachePoint("30m", message=0, part=0),)
    assert marked.messages[0]["content"][0] == {"type": "text", "text": "a"}


def test_beside_tools_structured_output_is_possible(model: ModelFacts) -> None:
    """It is a call or has the form: the grammar has both, and the compiler takes it."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}}}}
    (job,) = chat(tools=[TOOL], response_format=schema).prepare(model)
    assert isinstance(job.params, SamplingParams)
    form = job.params.structured_outputs
    assert form is not None
    assert form.grammar is not None
    assert form.grammar.startswith("start: calls | content\n")
    compiler = GrammarCompiler(model.tokenizer, model.tokenizer.eos_ids, model.tokenizer.vocab_size)
    try:
        assert compiler.submit(form).result(30)
    finally:
        compiler.close()
    with pytest.raises(ParameterError, match="must be JSON"):
        chat(tools=[TOOL], structured_outputs={"regex": "a"}).prepare(model)
