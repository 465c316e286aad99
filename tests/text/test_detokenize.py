"""Streamed text is the decoded text, and never holds half a character."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import bytelevel_metadata, sentencepiece_metadata
from twofold.text.detokenize import StreamDetokenizer
from twofold.text.tokenizers.tokenizer import Tokenizer


@cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "gpt2":
        merges = [("Ġ", "a"), ("ð", "Ł"), ("ðŁ", "ĺ")]
        return tokenizer_of(bytelevel_metadata(merges, defined=["<tool>"]))
    pieces = ["▁a", "▁", "a", "é", "▁▁"]
    return tokenizer_of(sentencepiece_metadata(pieces, space_prefix=kind == "prefixed", defined=["\n\n"]))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["gpt2", "llama", "prefixed"]),
    st.lists(st.integers(0, 255), max_size=12),
    st.booleans(),
    st.booleans(),
)
@example("prefixed", [3, 0, 5], True, False)
@example("gpt2", [0xE2, 0x96, 0xE2], False, False)
def test_pushes_and_flush_are_decode(kind: str, ids: list[int], skip: bool, continuation: bool) -> None:
    made = tokenizer(kind)
    spread = [(token if index % 2 else token * 37) % made.vocab_size for index, token in enumerate(ids)]
    stream = StreamDetokenizer(made, skip_special_tokens=skip, continuation=continuation)
    text = "".join([*map(stream.push, spread), stream.flush()])
    assert text == made.decode(spread, skip_special_tokens=skip, continuation=continuation)


@pytest.mark.parametrize("text", ["😀", "👩‍🚀", "é", "你好", "a😀b"])
def test_a_character_leaves_when_it_is_whole(text: str) -> None:
    made = tokenizer("gpt2")
    stream = StreamDetokenizer(made)
    pieces = [stream.push(token) for token in made.encode(text)]
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    assert stream.flush() == ""


def test_half_a_character_at_the_end_is_replaced() -> None:
    made = tokenizer("gpt2")
    stream = StreamDetokenizer(made)
    assert [stream.push(token) for token in made.encode("a😀")[:-1]] == ["a", ""]
    assert stream.flush() == "�"


def test_special_tokens_within_a_character_do_not_part_it() -> None:
    made = tokenizer("llama")
    first, second = (3 + byte for byte in "é".encode())
    stream = StreamDetokenizer(made)
    assert [stream.push(token) for token in (first, 1, second)] == ["", "", "é"]


def test_first_space_is_kept_in_a_continuation() -> None:
    made = tokenizer("prefixed")
    token = made.encode("a")[1]
    assert StreamDetokenizer(made).push(token) == "a"
    assert StreamDetokenizer(made, continuation=True).push(token) == " a"
