"""A long text is tokenised in windows, with the ids of the text as a whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import REPEATS, bytelevel_metadata, sentencepiece_metadata
from twofold.text.tokenizers.bytelevel import RULES
from twofold.text.tokenizers.encoder import PlainEncoder

MERGES = [
    *REPEATS,
    ("Ġ", "a"),
    ("Ċ", "Ċ"),
    ("!", "!"),
    ("'", "s"),
]
MERGES += [("Ċ", "Ġ"), ("Ġ", "Ċ"), ("A", "b"), ("b", "A"), ("1", "2"), ("!", "Ċ")]
DEFINED = ["    ", "a  a", "<think>", "ee", "\n\n\n"]
BLANKS = [*"  \n\r\t!", "x", "\r\n", "    "]
PARTS = [
    *"aaAbe  1!'.\n\r\t漢é\u0301한",
    " a",
    "a b",
    "'s",
    "'re",
    "  ",
    "\r\n",
    " \n ",
    "123",
    "<think>",
    "\u1161",
    "ǅ",
]


class _Recorder:
    """An encoder of the ``tokenizers`` package that records the lengths of texts."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.lengths: list[int] = []

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.lengths += map(len, texts)
        return self._encoder.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.lengths += map(len, texts)
        return self._encoder.encode_batch_fast(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


def _encoder(metadata: dict[str, object]) -> Any:
    return tokenizer_of(metadata)._encoder._encoder


def _texts(seed: int) -> Iterator[str]:
    numbers = random.Random(seed)
    for _ in range(60):
        few = BLANKS if numbers.random() < 0.3 else numbers.sample(PARTS, numbers.choice((2, 5, len(PARTS))))
        parts = numbers.choices(few, k=numbers.randint(40, 400))
        yield "".join(part * numbers.choice((1, 1, 2, 9)) for part in parts)


@pytest.mark.parametrize("defined", [DEFINED, []], ids=["defined", "none"])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_windows_give_the_ids_of_the_whole(rule: str, defined: list[str]) -> None:
    whole = PlainEncoder(_encoder(bytelevel_metadata(MERGES, pre=rule, defined=defined)))
    recorder = _Recorder(whole._encoder)
    windowed = PlainEncoder(recorder, window=48)  # type: ignore[arg-type]
    cut = 0
    for text in _texts(len(rule)):
        recorder.lengths.clear()
        assert windowed.encode(text) == whole.encode(text), text
        cut += max(recorder.lengths) < len(text)
    assert cut >= 20


@pytest.mark.parametrize("text", ["1 ", "1", "the cat sat on 12 mats, ", "a\n"])
def test_no_more_than_a_window_is_tokenised_at_once(text: str) -> None:
    recorder = _Recorder(_encoder(bytelevel_metadata(MERGES, pre="smollm")))
    PlainEncoder(recorder, window=1000).encode(text * (30_000 // len(text)))  # type: ignore[arg-type]
    assert max(recorder.lengths) == 1000


def test_a_long_word_is_not_cut() -> None:
    whole = PlainEncoder(_encoder(bytelevel_metadata(MERGES)))
    text = "a" * 501 + " b" * 200 + "a" * 777
    assert PlainEncoder(whole._encoder, window=64).encode(text) == whole.encode(text)


def test_a_vocabulary_without_words_is_not_cut() -> None:
    recorder = _Recorder(_encoder(sentencepiece_metadata(["▁", "a", "a▁a"], space_prefix=True)))
    PlainEncoder(recorder, window=64).encode("a a " * 100)  # type: ignore[arg-type]
    assert recorder.lengths == [400]
