"""Pieces of text that have one token each, wherever they stand: what prompts of exact lengths are made of.

A tokenizer that splits before spaces makes the same of a word in any text, so words are tried by counting many at once:
where a text has as many tokens more as it has words more, each of them is one. Where that fails, the words that are to
blame are looked for by dividing. A vocabulary without words is tried with single characters. Where neither helps, or
nobody counts, words stand for some number of tokens on average, and prompts are only about as long as asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from twofold.bench.load.base import PromptMessage
from twofold.bench.prompts.base import TokenCounter
from twofold.bench.prompts.words import WORDS

START: Final = "A"
"""How every message begins: one token in any vocabulary, and no space, which templates would cut off."""

CHARACTERS: Final = tuple("BCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
BATCH: Final = 256
LEAST_WORDS: Final = 96
LEAST_GROUP: Final = 16
MOST_CALLS: Final = 64


@dataclass(frozen=True, slots=True)
class Units:
    """Texts to put behind each other.

    each   tokens of one
    start  tokens of a prompt of one message that is only ``START``, or None where nobody counts
    exact  whether each has exactly one token
    """

    texts: tuple[str, ...]
    each: float
    start: int | None
    exact: bool


def find_units(counter: TokenCounter | None) -> Units:
    """The units of a server's vocabulary, found with at most some tens of counts; with four where all words will do."""
    words = tuple(f" {word}" for word in WORDS)
    start = None if counter is None else counter.count(said(START))
    if counter is None or start is None:
        return Units(words, 1.0, None, exact=False)
    probe = _Probe(counter, start)
    good = tuple(word for group in _groups(words, BATCH) for word in probe.good(group))
    if len(good) >= LEAST_WORDS:
        return Units(good, 1.0, start, exact=True)
    if all(_Probe(counter, start).excess(_drawn(CHARACTERS, seed)) == 0 for seed in range(2)):
        return Units(CHARACTERS, 1.0, start, exact=True)
    excess = _Probe(counter, start).excess(words)
    return Units(words, 1.0 if excess is None else 1.0 + excess / len(words), start, exact=False)


def said(text: str) -> tuple[PromptMessage, ...]:
    return (PromptMessage("user", text),)


class _Probe:
    """Tells which texts are units, with a limited number of counts."""

    def __init__(self, counter: TokenCounter, start: int) -> None:
        self._counter = counter
        self._start = start
        self._left = MOST_CALLS

    def excess(self, texts: tuple[str, ...]) -> int | None:
        """How many tokens more than one each they have; None where nobody says, or enough was asked."""
        if self._left == 0:
            return None
        self._left -= 1
        count = self._counter.count(said(START + "".join(texts)))
        return None if count is None else count - self._start - len(texts)

    def good(self, texts: tuple[str, ...]) -> Iterator[str]:
        """Those that are units. Groups in which many are not, and small ones with one that is not, are given up."""
        excess = self.excess(texts)
        if excess == 0:
            yield from texts
        elif excess is not None and len(texts) > LEAST_GROUP and excess <= len(texts) // 2:
            for part in _groups(texts, max(len(texts) // 4, LEAST_GROUP)):
                yield from self.good(part)


def _groups(texts: tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
    for at in range(0, len(texts), size):
        yield texts[at : at + size]


def _drawn(texts: tuple[str, ...], seed: int) -> tuple[str, ...]:
    drawn = np.random.default_rng(seed).integers(len(texts), size=BATCH)
    return tuple(texts[index] for index in drawn)
