"""The protocol of a constraint: masks, ends and limits."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import pytest

from tests.engine.grammar.conftest import LocalCompiler, byte_level
from tests.engine.grammar.walks import FORMS, allowed
from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.compiled import CompiledGrammar
from twofold.text.parsers.format import CompletionFormat
from twofold.text.tokenizers.tokenizer import Tokenizer

DOCUMENT = {"name": 'Zoë "the" tortoise 🐢', "age": 137, "tags": ["slow", "ab 12"]}


def compiled(compiler: LocalCompiler, name: str) -> CompiledGrammar:
    return compiler.compile(FORMS[name].params)


def feed(constraint: TokenConstraint, tokens: list[int]) -> None:
    for token in tokens:
        assert token in allowed(constraint), token
        constraint.advance([token])


@pytest.mark.model
@pytest.mark.parametrize("indent", [None, 2])
def test_every_token_of_a_valid_document_is_allowed(
    model_compiler: LocalCompiler, model_tokenizer: Tokenizer, indent: int | None
) -> None:
    text = json.dumps(DOCUMENT, ensure_ascii=False, indent=indent)
    constraint = compiled(model_compiler, "person").start(1_000)
    feed(constraint, model_tokenizer.encode(text, add_special_tokens=False, parse_special=False))
    assert not constraint.shortened
    assert set(allowed(constraint)) == set(model_tokenizer.eos_ids)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_tiny_vocabularies_write_a_document_too(tiny_compiler: LocalCompiler, ascii_only: bool) -> None:
    grammar = compiled(tiny_compiler, "person")
    constraint = grammar.start(1_000)
    feed(constraint, grammar.vocabulary.encode(json.dumps(DOCUMENT, ensure_ascii=ascii_only).encode()))
    assert not constraint.shortened


def test_the_mask_is_kept_until_a_token_is_taken(tiny_compiler: LocalCompiler) -> None:
    grammar = compiled(tiny_compiler, "person")
    constraint = grammar.start(100)
    first = constraint.masks()[0]
    before = bytes(first)
    assert first.itemsize == 4
    assert len(first) == grammar.vocabulary.words
    assert constraint.masks()[0] is first
    constraint.advance([grammar.vocabulary.tokens.index(b"{")])
    assert constraint.masks()[0] is first
    assert bytes(first) != before


def test_ids_beyond_the_tokenizer_are_never_allowed(tiny_compiler: LocalCompiler) -> None:
    grammar = tiny_compiler.compile(StructuredOutputsParams(regex=r"(?s:.*)"))
    ids = allowed(grammar.start(10))
    unknown = [token for token, data in enumerate(grammar.vocabulary.tokens) if not data]
    assert len(unknown) >= 5
    assert not set(unknown) & set(ids)


def test_the_end_is_allowed_only_if_the_output_is_complete(tiny_compiler: LocalCompiler) -> None:
    grammar = tiny_compiler.compile(StructuredOutputsParams(regex="ab(cd)?"))
    constraint = grammar.start(50)
    ends = set(grammar.vocabulary.end_ids)
    seen = []
    for byte in b"abcd":
        seen.append(ends <= set(allowed(constraint)))
        constraint.advance([grammar.vocabulary.tokens.index(bytes([byte]))])
    assert seen == [False, False, True, False]
    assert set(allowed(constraint)) == ends
    assert constraint.finished


def test_every_end_token_ends(tiny_compiler: LocalCompiler) -> None:
    grammar = tiny_compiler.compile(StructuredOutputsParams(regex="a*"))
    for end in grammar.vocabulary.end_ids:
        constraint = grammar.start(50)
        assert end in allowed(constraint)
        constraint.advance([end])
        assert constraint.finished


def test_control_tokens_are_not_allowed_as_text(tiny_compiler: LocalCompiler) -> None:
    grammar = tiny_compiler.compile(StructuredOutputsParams(regex=r"(?s:.*)"))
    special = set(grammar.vocabulary.special_ids) - set(grammar.vocabulary.end_ids)
    assert not special & set(allowed(grammar.start(10)))


def test_a_limit_below_the_shortest_known_output_is_refused(tiny_compiler: LocalCompiler) -> None:
    grammar = compiled(tiny_compiler, "person")
    with pytest.raises(ParameterError, match=rf"needs at least {grammar.min_tokens} tokens") as caught:
        grammar.start(grammar.min_tokens - 1)
    assert caught.value.param == "max_tokens"
    assert caught.value.hint
    grammar.start(grammar.min_tokens)


def test_completions_of_one_grammar_are_independent(tiny_compiler: LocalCompiler) -> None:
    grammar = compiled(tiny_compiler, "person")
    one, other = grammar.start(100), grammar.start(100)
    before = bytes(other.masks()[0])
    feed(one, grammar.vocabulary.encode(b'{"name":"the'))
    assert bytes(other.masks()[0]) == before
    assert bytes(grammar.start(100).masks()[0]) == before


@pytest.mark.model
def test_masks_may_be_computed_in_other_threads(model_compiler: LocalCompiler) -> None:
    grammar = compiled(model_compiler, "person")
    tokens = grammar.vocabulary.encode(json.dumps(DOCUMENT).encode())

    def masks(_: int) -> list[bytes]:
        constraint = grammar.start(400)
        seen = []
        for token in tokens:
            seen.append(np.asarray(constraint.masks()[0]).tobytes())
            constraint.advance([token])
        return seen

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(masks, range(8))
    assert all(other == first for other in others)


SPACED: Final = ('{"a":true}', '{\n  "a": true\n}', '{\r\n\t"a" : true\r\n}', "{\n\n" + " " * 60 + '"a":\ttrue}')
ENDLESS: Final = ('{"a":' + " " * 9 + "true}", "{" + "\n" * 9 + '"a":true}', '{"a":true' + "\n " * 9 + "}")


@pytest.mark.parametrize("text", [*SPACED, *ENDLESS])
@pytest.mark.parametrize("beside_calls", [False, True])
def test_white_space_has_an_end(tiny_compiler: LocalCompiler, text: str, beside_calls: bool) -> None:
    """Models that repeat it would write nothing else up to the limit."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = StructuredOutputsParams(json=schema)
    if beside_calls:
        tool = {"type": "function", "function": {"name": "f"}}
        wanted = CompletionFormat.of(byte_level()).calls_or([tool], wanted, parallel=False)
    matcher = tiny_compiler.compile(wanted).matcher.deep_copy()
    tokens = tiny_compiler.vocabulary.cut(text.encode())
    assert (matcher.validate_tokens(tokens) == len(tokens)) == (text in SPACED)
