"""Of any schema, an output at its limit is valid, and one that fits its limit is allowed."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.grammar.conftest import LocalCompiler, byte_level, sentence_piece
from tests.engine.grammar.test_limits import WIDE, output, refused
from tests.engine.grammar.walks import walk
from twofold.core.params import StructuredOutputsParams

PATTERNS: Final = (r"^\d{2}-\d{2}$", r"^[a-z]+@[a-z]+$", r"^(?:[^,]+,\s*){2}[^,]+$", r"^\w+\s\w+$")
NAMES: Final = st.lists(st.sampled_from(["a", "name", "the", "ab12"]), min_size=1, max_size=3, unique=True)
COMPILERS: Final = [LocalCompiler(each, each.vocab_size) for each in (byte_level(), sentence_piece())]


def texts() -> st.SearchStrategy[dict[str, Any]]:
    lengths = st.builds(lambda least, more: {"minLength": least, "maxLength": least + more}, *[st.integers(0, 6)] * 2)
    patterns = st.sampled_from(PATTERNS).map(lambda pattern: {"pattern": pattern})
    return st.one_of(st.just({}), lengths, patterns).map(lambda more: {"type": "string", **more})


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    words = st.lists(st.sampled_from(["the", "then", "o" * 9, 'say "x"', 7, None, True]), min_size=1, unique_by=repr)
    kinds = st.sampled_from(["integer", "boolean", "null"]).map(lambda kind: {"type": kind})
    return st.one_of(texts(), words.map(lambda values: {"enum": values}), kinds)


def arrays(items: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda item, least, more: {"type": "array", "items": item, "minItems": least, "maxItems": least + more},
        *(items, st.integers(0, 2), st.integers(0, 2)),
    )


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    names = draw(NAMES)
    required = [name for name in names if draw(st.booleans())]
    return {"type": "object", "properties": {name: draw(values) for name in names}, "required": required}


SCHEMAS: Final = objects(st.recursive(leaves(), lambda inner: st.one_of(arrays(inner), objects(inner)), max_leaves=4))


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is valid; of the keywords that are used here."""
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    match schema["type"]:
        case "string":
            length = isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema.get(
                "maxLength", WIDE
            )
            return length and re.search(schema.get("pattern", ""), value) is not None
        case "array":
            count = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return count and all(fits(one, schema["items"]) for one in value)
        case "object":
            known = isinstance(value, dict) and {*schema["required"]} <= value.keys() <= schema["properties"].keys()
            return known and all(fits(one, schema["properties"][name]) for name, one in value.items())
    return type(value) is {"integer": int, "boolean": bool, "null": type(None)}[schema["type"]]


@pytest.mark.parametrize("compiler", COMPILERS, ids=["bytelevel", "sentencepiece"])
@given(schema=SCHEMAS, more=st.integers(0, 30), seed=st.integers(0, 1_000))
@settings(max_examples=40)
def test_outputs_at_their_limits_are_valid(
    compiler: LocalCompiler, schema: dict[str, Any], more: int, seed: int
) -> None:
    compiled = compiler.compile(StructuredOutputsParams(json=schema))
    text = walk(compiled, compiled.min_tokens + more, random.Random(seed), structural=seed % 3 / 2).text
    assert fits(json.loads(text), schema), text


@pytest.mark.parametrize("compiler", COMPILERS, ids=["bytelevel", "sentencepiece"])
@given(schema=SCHEMAS, begin=st.integers(0, 30), margin=st.integers(3, 8), seed=st.integers(0, 1_000))
@settings(max_examples=40)
def test_outputs_that_fit_are_allowed(
    compiler: LocalCompiler, schema: dict[str, Any], begin: int, margin: int, seed: int
) -> None:
    compiled = compiler.compile(StructuredOutputsParams(json=schema))
    tokens = output(compiled, begin, random.Random(seed))
    if refused(compiled, WIDE, tokens) is None:
        assert refused(compiled, len(tokens) + margin, tokens) is None
