"""Prompts of exactly as many tokens as asked, without asking anyone while the load runs.

A message is ``START`` and units behind it (``units``), so it has as many tokens as units, and some that do not depend
on it: ``START`` and what the chat template adds. Those are counted once before the run: for a first turn, and for a
later one, where they are what the template adds between an answer and the next.

A prompt depends on the seed and its request alone. What it shares with others depends on the seed and the key. What is
its own begins with units that spell the request's index, so that two prompts differ as early as two can, and no prefix
cache hits by accident. Another run against the same server needs another seed, or it finds all its prompts cached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.prompts.base import TokenCounter
from twofold.bench.prompts.units import START, Units, find_units

INDEXES: Final = 1 << 24
"""So many prompts are told apart by how they begin."""

TRIALS: Final = (
    Ask(INDEXES - 1, 0.0, 48, 1),
    Ask(INDEXES - 2, 0.0, 200, 1, shared=(Shared(-1, 60),)),
    Ask(INDEXES - 3, 0.0, 1000, 1),
)
"""Prompts that are counted to see whether they are as long as asked; no load has their indexes."""

_KEPT: Final = 128
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What making prompts for a server needs to know of it.

    first, later   tokens of a prompt that are no units: of a first turn, and of what a later one adds
    start_later    whether a later turn begins with ``START``: a chat's; a plain text goes on with a space
    source         who counted, for the report
    exact          whether prompts have as many tokens as asked; checked where someone counts
    """

    units: Units
    first: int
    later: int
    start_later: bool
    source: str
    exact: bool


class Prompter:
    """Makes all messages of a request. The same for the same request; safe to call in any order."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self._seed = seed & _MASK
        self._units = np.array(recipe.units.texts, dtype=object)
        self._places = np.random.default_rng((self._seed, 0)).permutation(len(self._units))
        self._shared = lru_cache(_KEPT)(self._make_shared)

    def with_seed(self, seed: int) -> Prompter:
        """The same for another run: none of its prompts is one of this."""
        return Prompter(self.recipe, seed)

    @property
    def enough_tokens(self) -> int:
        """A first prompt that is all its own cannot have fewer."""
        return self.recipe.first + 1

    def describe(self) -> Mapping[str, Any]:
        """What the report says of it: plain data."""
        recipe = self.recipe
        return {
            "counted_by": recipe.source,
            "exact": recipe.exact,
            "seed": self._seed,
            "template_tokens": recipe.first,
            "template_tokens_later": recipe.later,
            "tokens_each": recipe.units.each,
            "units": len(recipe.units.texts),
        }

    def __call__(self, ask: Ask) -> tuple[PromptMessage, ...]:
        if ask.messages is not None:
            return (*ask.history, *ask.messages)
        goes_on = bool(ask.history)
        recipe = self.recipe
        begin = START if recipe.start_later or not goes_on else ""
        room = self._room(ask.input_tokens - (recipe.later if goes_on else recipe.first))
        parts = [begin]
        for piece in ask.shared:
            count = min(self._room(piece.tokens), room)
            parts.append(self._shared(piece.key, count))
            room -= count
        parts.append(self._own(ask.index, room))
        return (*ask.history, PromptMessage("user", "".join(parts)))

    def _room(self, tokens: int) -> int:
        """How many units have so many tokens."""
        each = self.recipe.units.each
        return max(tokens if each == 1.0 else round(tokens / each), 0)

    def _make_shared(self, key: int, count: int) -> str:
        return "".join(self._drawn((self._seed, 1, key & _MASK), count))

    def _own(self, index: int, count: int) -> str:
        return "".join((self._spelled(index) + self._drawn((self._seed, 2, index & _MASK), count))[:count])

    def _spelled(self, index: int) -> list[str]:
        """The index in as many digits as ``INDEXES`` takes; the digits are units in an order of the seed's."""
        base = len(self._places)
        digits = []
        left = INDEXES
        while left > 0:
            index, digit = divmod(index, base)
            digits.append(str(self._units[self._places[digit]]))
            left //= base
        return digits

    def _drawn(self, seed: tuple[int, ...], count: int) -> list[str]:
        """Units drawn one after the other: fewer of the same seed are the beginning of more."""
        draws = np.random.default_rng(seed).random(count)
        drawn: list[str] = self._units[(draws * len(self._units)).astype(np.intp)].tolist()
        return drawn


def make_prompter(counter: TokenCounter | None, *, chat: bool, seed: int) -> Prompter:
    """Looks at how ``counter`` counts, and checks what comes of it. Without one, a word is taken for a token.

    chat  whether the endpoint takes messages; else one text
    """
    units = find_units(counter)
    if counter is None or units.start is None:
        return Prompter(Recipe(units, 1, 1, chat, "not counted; one word is taken as one token", exact=False), seed)
    later = _later(counter, units) if chat else 0
    recipe = Recipe(units, units.start, units.start if later is None else later, chat, counter.source, units.exact)
    if recipe.exact and not _keeps_promise(Prompter(recipe, seed), counter):
        recipe = dataclasses.replace(recipe, exact=False)
    return Prompter(recipe, seed)


def _later(counter: TokenCounter, units: Units) -> int | None:
    """What a second turn adds beside its units and the answer before: None where the chat is refused."""
    text = START + "".join(units.texts[:8])
    once = (PromptMessage("user", text),)
    first, second = counter.count(once), counter.count((*once, PromptMessage("assistant", text), *once))
    if first is None or second is None:
        return None
    return max(second - first - 1 - round(16 * units.each), 0)


def _keeps_promise(prompter: Prompter, counter: TokenCounter) -> bool:
    """Whether trials have as many tokens as asked; those are left out that the server has no room for."""
    asks = [ask for ask in TRIALS if ask.input_tokens >= prompter.enough_tokens]
    counts = [(counter.count(prompter(ask)), ask.input_tokens) for ask in asks]
    told = [count == asked for count, asked in counts if count is not None]
    return bool(told) and all(told)
