"""A compiler for each kind of vocabulary, tiny and real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import bytelevel_metadata, sentencepiece_metadata
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.compiled import CompiledGrammar, completed, matched
from twofold.engine.grammar.source import grammar_source
from twofold.engine.grammar.vocabulary import TokenVocabulary
from twofold.formats.gguf import GGUFFile
from twofold.text.tokenizers.tokenizer import Tokenizer

MERGES = [("a", "b"), ("t", "h"), ("th", "e"), ('"', ":"), ("{", '"'), ('"', "}"), (",", '"'), ("1", "2"), ("o", "o")]
PIECES = ["▁", "▁the", "th", "ab", '":', '{"', '"}', '","', "12", "▁{", "oo", "name"]


def byte_level() -> Tokenizer:
    return tokenizer_of(bytelevel_metadata(MERGES, control=("<|end|>", "<|im_end|>")))


def sentence_piece() -> Tokenizer:
    return tokenizer_of(sentencepiece_metadata(PIECES, space_prefix=True))


class LocalCompiler:
    """Compiles in this process, without limits, so that tests see the inside of a form."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.vocabulary = TokenVocabulary(tokenizer, tokenizer.eos_ids, size)

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        source = grammar_source(params)
        return completed(source, matched(source, self.vocabulary), self.vocabulary)


@pytest.fixture(scope="session", params=[byte_level, sentence_piece], ids=["bytelevel", "sentencepiece"])
def tiny_compiler(request: pytest.FixtureRequest) -> LocalCompiler:
    """Over all bytes and a few merges."""
    tokenizer: Tokenizer = request.param()
    return LocalCompiler(tokenizer, tokenizer.vocab_size + 5)


@pytest.fixture(scope="session")
def model_tokenizer(default_model: Path) -> Tokenizer:
    with GGUFFile.open(default_model) as file:
        return tokenizer_of(file.metadata)


@pytest.fixture(scope="session")
def model_compiler(model_tokenizer: Tokenizer) -> LocalCompiler:
    """Over the default model's vocabulary."""
    return LocalCompiler(model_tokenizer, model_tokenizer.vocab_size)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    tokenizer = byte_level()
    made = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size, seconds=2.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local() -> LocalCompiler:
    tokenizer = byte_level()
    return LocalCompiler(tokenizer, tokenizer.vocab_size)
