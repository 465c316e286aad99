"""The forms of tool calls compile, and outputs that match them are parsed as calls that fit the tools' schemas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.engine.grammar.conftest import LocalCompiler
from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from tests.text.parsers.checks import parse_whole
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.step import TokenConstraint
from twofold.engine.llm import LLM
from twofold.engine.prompts import TokensPrompt
from twofold.text.parsers.base import Arguments, ToolCall
from twofold.text.parsers.family import Tool, ToolFamily
from twofold.text.parsers.format import CompletionFormat
from twofold.text.parsers.gemma import FUNCTION_GEMMA
from twofold.text.parsers.json_calls import HERMES, LLAMA3, MISTRAL
from twofold.text.parsers.pythonic import PYTHONIC
from twofold.text.parsers.tagged import TAGGED
from twofold.text.tokenizers.tokenizer import Tokenizer

VOCAB: Final = 300
FAMILIES: Final[tuple[ToolFamily, ...]] = (HERMES, LLAMA3, MISTRAL, PYTHONIC, FUNCTION_GEMMA, TAGGED)


def tool(name: str, **function: Any) -> Tool:
    return {"type": "function", "function": {"name": name, **function}}


WEATHER: Final = tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "exact": {"type": "boolean"},
        },
        "required": ["city"],
    },
)
STRICT: Final = tool(
    "set",
    strict=True,
    parameters={
        "type": "object",
        "properties": {"on": {"$ref": "#/$defs/flag"}, "note": {"type": "null"}},
        "required": ["on", "note"],
        "additionalProperties": False,
        "$defs": {"flag": {"type": "boolean"}},
    },
)
TOOLS: Final = (WEATHER, STRICT, tool("now"))

ODD_ARGUMENTS: Final = {
    "a": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    "b": {"type": "number", "description": 'a "quoted" \\ text'},
    "c": {"type": "boolean"},
}
ODD: Final = tool("odd", parameters={"type": "object", "properties": ODD_ARGUMENTS, "additionalProperties": False})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(tokenizer_metadata(VOCAB))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> LocalCompiler:
    return LocalCompiler(tokenizer, VOCAB)


def drawn(rules: TokenConstraint, tokenizer: Tokenizer, seed: int) -> str:
    draw, ids = random.Random(seed), []
    for _ in range(200):
        mask = rules.masks()[0]
        assert mask is not None
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        ids.append(draw.choice(np.flatnonzero(bits).tolist()))
        rules.advance([ids[-1]])
        if rules.finished or ids[-1] in tokenizer.eos_ids:
            break
    return tokenizer.decode(ids)


def calls_of(family: ToolFamily, text: str) -> list[tuple[str, dict[str, Any]]]:
    pieces = parse_whole(family.parser([*TOOLS, ODD], parallel=True), text)
    assert all(isinstance(piece, ToolCall | Arguments) for piece in pieces), text
    names = [piece.name for piece in pieces if isinstance(piece, ToolCall)]
    arguments = [
        "".join(piece.text for piece in pieces if isinstance(piece, Arguments) and piece.index == index)
        for index in range(len(names))
    ]
    return list(zip(names, map(json.loads, arguments), strict=True))


def check(name: str, arguments: dict[str, Any], *, exact: bool) -> None:
    if name == "get_weather":
        assert arguments["city"] in {"Paris", "Rome"}
        assert not exact or 1 <= arguments.get("days", 1) <= 14
        assert isinstance(arguments.get("exact", True), bool)
    elif name == "set":
        assert set(arguments) == {"on", "note"}
        assert arguments["note"] is None
    else:
        assert (name, arguments) == ("now", {})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("parallel", [False, True])
def test_every_sampled_output_is_a_call(
    compiler: LocalCompiler, tokenizer: Tokenizer, family: ToolFamily, parallel: bool
) -> None:
    rules = family.rules(TOOLS, json.dumps, parallel=parallel)
    grammar = compiler.compile(StructuredOutputsParams(grammar=rules))
    for seed in range(5):
        calls = calls_of(family, drawn(grammar.start(200), tokenizer, seed))
        assert calls
        assert parallel or len(calls) == 1
        for name, arguments in calls:
            check(name, arguments, exact=family is not FUNCTION_GEMMA)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tools_without_required_arguments_and_odd_names(
    compiler: LocalCompiler, tokenizer: Tokenizer, family: ToolFamily
) -> None:
    """Optional arguments only; a list, a map, anything; quotes in a description do not matter."""
    grammar = compiler.compile(StructuredOutputsParams(grammar=family.rules([ODD], json.dumps, parallel=False)))
    for seed in range(5):
        ((name, arguments),) = calls_of(family, drawn(grammar.start(200), tokenizer, seed))
        assert name == "odd"
        assert set(arguments) <= set(ODD_ARGUMENTS)


def test_unreachable_parts_of_a_schema_count_only_when_strict(compiler: LocalCompiler) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "contentMediaType": "x"}, "b": {"not": {}}}}
    loose = HERMES.rules([tool("now", parameters=schema)], json.dumps, parallel=False)
    strict = HERMES.rules([tool("now", parameters=schema, strict=True)], json.dumps, parallel=False)
    assert compiler.compile(StructuredOutputsParams(grammar=loose)).min_tokens
    with pytest.raises(Exception, match="structured output"):
        compiler.compile(StructuredOutputsParams(grammar=strict))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(
    "parameters", [{}, {"properties": []}, {"properties": {"a": 1}, "required": [["a"], "a", 5]}, {"required": 7}, [1]]
)
def test_schemas_that_make_no_sense_do_not_raise(family: ToolFamily, parameters: object) -> None:
    """The compiler reports the errors of a schema."""
    odd = tool("now", parameters=parameters)
    assert family.rules([odd], json.dumps, parallel=True)
    assert family.instructions([odd])
    parse_whole(family.parser([odd], parallel=True), "<tool_call><function=now><parameter=a>1</parameter>")


def test_a_form_leaves_room_for_arguments(compiler: LocalCompiler) -> None:
    """The headroom near the limit depends on the length of a call, not on that of the schemas' text."""
    grammar = compiler.compile(StructuredOutputsParams(grammar=HERMES.rules(TOOLS, json.dumps, parallel=False)))
    assert grammar.headroom < 100


@pytest.mark.model
def test_the_default_model_calls_a_tool_that_it_must_call(default_model: Path) -> None:
    """Its template shows no tools: it is told them, and the form does the rest."""
    with LLM(default_model, max_model_len=1024) as llm:
        tokens = llm.get_tokenizer()
        form = CompletionFormat.of(tokens)
        messages, tools = form.shown([{"role": "user", "content": "How is the weather in Rome?"}], [WEATHER])
        assert tools is None
        wanted = SamplingParams(
            temperature=0, max_tokens=100, structured_outputs=form.call_grammar([WEATHER], parallel=False)
        )
        prompt: TokensPrompt = {"prompt_token_ids": tokens.apply_chat_template(messages)}
        text = llm.generate(prompt, wanted)[0].outputs[0].text
    ((name, arguments),) = calls_of(HERMES, text)
    assert (name, arguments["city"]) == ("get_weather", "Rome")
