"""A prompt that cannot fit is refused without being tokenised, and none that could is."""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.trust.state import memory_of
from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import REPEATS, bytelevel_metadata, plain_ids, sentencepiece_metadata
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.text.prompt_limit import SHORT, LowerBound, PromptLimit
from twofold.text.tokenizers.tokenizer import Tokenizer

MERGES = [
    *REPEATS,
    ("<", "<"),
    ("e", "Ì"),
    ("Ã", "©"),
    ("b", "c"),
]
PIECES = ["▁", "a", "b", "aa", "▁a", "▁▁", "▁▁▁▁", "é", "<", "<<"]
ALPHABET = "aaab  <1\n\té\u0301e▁\u3000漢\U0001f468\u200dKÅ"
METADATA = {
    "bytes": bytelevel_metadata(MERGES, defined=["    ", "<think>"]),
    "nfc": bytelevel_metadata(MERGES, pre="qwen2", defined=["ee"]),
    "pieces": sentencepiece_metadata(PIECES, defined=["a  a"], space_prefix=True),
    "unknown": sentencepiece_metadata(PIECES, bytes_too=False),
    "phi": sentencepiece_metadata(PIECES) | {"general.architecture": "phi3"},
}


def _bound(tokenizer: Tokenizer) -> LowerBound:
    return tokenizer._bound()


def _texts(seed: int) -> Iterator[str]:
    numbers = random.Random(seed)
    for _ in range(150):
        parts = numbers.choices([*ALPHABET, "<end>", "<|end|>", "    ", "aaaa"], k=numbers.randint(1, 60))
        yield "".join(part * numbers.choice((1, 1, 2, 9)) for part in parts)


@pytest.mark.parametrize("kind", METADATA)
def test_the_bound_is_never_above_the_count(kind: str) -> None:
    tokenizer = tokenizer_of(METADATA[kind])
    reached = 0.0
    for text in _texts(len(kind)):
        at_least, exact = _bound(tokenizer).tokens(text), len(plain_ids(tokenizer, text))
        assert at_least <= exact, text
        reached = max(reached, at_least / exact)
    assert reached > 0.2


def test_bytes_without_a_token_do_not_count() -> None:
    """The encoder drops them, or makes one token of a run of them."""
    metadata = bytelevel_metadata()
    texts, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(texts, list)
    assert isinstance(types, list)
    types[texts.index("x")] = 5
    dropping = tokenizer_of(metadata)
    assert _bound(dropping).tokens("x" * 1000) == len(plain_ids(dropping, "x" * 1000)) == 0
    fusing = tokenizer_of(METADATA["unknown"])
    assert _bound(fusing).tokens("漢" * 1000) <= len(plain_ids(fusing, "漢" * 1000)) == 1


def test_composition_keeps_what_is_counted() -> None:
    """What counts with NFC is ASCII before ASCII, which composes with nothing."""
    bound = _bound(tokenizer_of(METADATA["nfc"]))
    for code in range(0x80, 0x11_0000):
        text = f"xa{chr(code)}ax"
        if not 0xD800 <= code < 0xE000 and unicodedata.normalize("NFC", text) != text:
            assert unicodedata.normalize("NFC", text).startswith("x")
            assert bound.tokens(text) <= 2


class _Counting:
    """An encoder that counts the bytes it is given."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.bytes = encoder, 0

    def encode(self, text: str) -> list[int]:
        self.bytes += len(text.encode())
        return self.encoder.encode(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["bytes", "nfc", "pieces"])
@pytest.mark.parametrize("text", ["1", "<", "a b ", " ", "<end>", "<|end|>"])
def test_what_cannot_fit_is_not_tokenised(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(METADATA[kind], chat_template="{{ messages[0].content }}")
    counting = tokenizer._encoder = _Counting(tokenizer._encoder)  # type: ignore[assignment]
    bounded, long = tokenizer.within(PromptLimit(100)), text * (2_000_000 // len(text))
    with pytest.raises(ContextLengthError, match=r"at least \d+ tokens; with one output token, it .* context of 100"):
        bounded.encode(long)
    with pytest.raises(ContextLengthError, match="at least"):
        bounded.apply_chat_template([{"role": "user", "content": long}])
    assert counting.bytes == 0


def test_what_fits_is_counted_exactly() -> None:
    tokenizer = tokenizer_of(METADATA["bytes"])
    text = "1b" * SHORT
    exact = len(tokenizer.encode(text))
    assert tokenizer.within(PromptLimit(exact + 1)).encode(text) == tokenizer.encode(text)
    assert tokenizer.within(PromptLimit(exact, reserved=0)).encode(text) == tokenizer.encode(text)
    with pytest.raises(ContextLengthError, match=f"has at least {exact} tokens"):
        tokenizer.within(PromptLimit(exact)).encode(text)
    with pytest.raises(ContextLengthError, match="has 6 tokens"):
        tokenizer.within(PromptLimit(6)).encode("1b1b1b")


def test_a_lone_surrogate_is_reported_in_long_texts_too() -> None:
    tokenizer = tokenizer_of(METADATA["bytes"]).within(PromptLimit(10))
    with pytest.raises(ParameterError, match="surrogate"):
        tokenizer.encode("\ud800" * (SHORT + 1))


def test_what_an_encoder_remembers_is_bounded() -> None:
    """Words of 255 bytes take the most: 10,000 of them, which is the package's default, took 80 MB."""
    tokenizer = tokenizer_of(bytelevel_metadata())
    numbers = random.Random(1)
    before = memory_of([os.getpid()])
    for _ in range(10_000):
        tokenizer.encode("".join(numbers.choices("abcdefgh", k=255)))
    assert memory_of([os.getpid()]) - before < 55 << 20
