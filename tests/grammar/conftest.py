"""A compiler for each kind of vocabulary, tiny and real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.text.vocabularies import bytelevel_metadata, sentencepiece_metadata
from twofold.formats.gguf import GGUFFile
from twofold.grammar.compile import GrammarCompiler
from twofold.text.tokenizer import Tokenizer

MERGES = [("a", "b"), ("t", "h"), ("th", "e"), ('"', ":"), ("{", '"'), ('"', "}"), (",", '"'), ("1", "2"), ("o", "o")]
PIECES = ["▁", "▁the", "th", "ab", '":', '{"', '"}', '","', "12", "▁{", "oo", "name"]


def byte_level() -> Tokenizer:
    return Tokenizer.from_metadata(bytelevel_metadata(MERGES, control=("<|end|>", "<|im_end|>")))


def sentence_piece() -> Tokenizer:
    return Tokenizer.from_metadata(sentencepiece_metadata(PIECES, space_prefix=True))


@pytest.fixture(scope="session", params=[byte_level, sentence_piece], ids=["bytelevel", "sentencepiece"])
def tiny_compiler(request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    """Over all bytes and a few merges; a budget that a busy machine keeps."""
    tokenizer: Tokenizer = request.param()
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size + 5, seconds=2.0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def model_tokenizer(default_model: Path) -> Tokenizer:
    with GGUFFile.open(default_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.fixture(scope="session")
def model_compiler(model_tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    """Over the default model's vocabulary."""
    compiler = GrammarCompiler(model_tokenizer, model_tokenizer.eos_ids, model_tokenizer.vocab_size, seconds=2.0)
    yield compiler
    compiler.close()
