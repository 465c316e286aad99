"""Makes prompts of exact numbers of tokens without counting during the load.

A message is ``START`` and units (``units``), so its tokens are its units, ``START``, and what the chat template adds.
The latter are counted once before the run, for a first turn and for a later one.

A prompt depends only on the seed and its request, its shared prefix on the seed and the key. The rest begins with units
that encode the request's index, so that prompts differ as early as possible and no prefix cache hits by accident.
Another run against the same server needs another seed, or all its prompts are cached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from twofold.bench.base import TokenCounter
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.prompts.units import START, Units, find_units

INDEXES: Final = 1 << 24
"""Number of prompts with distinct beginnings."""

TRIALS: Final = (
    Ask(INDEXES - 1, 0.0, 48, 1),
    Ask(INDEXES - 2, 0.0, 200, 1, shared=(Shared(-1, 60),)),
    Ask(INDEXES - 3, 0.0, 1000, 1),
)
"""Prompts that are counted to check their lengths; no load has their indexes."""

_CACHED: Final = 128
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """Properties of a server's tokenizer and template.

    first, later   tokens of a prompt besides its units: in a first turn, and added by a later one
    start_later    whether a later turn begins with ``START``: in chats; a plain text continues with a space
    source         where counts come from, for the report
    exact          whether prompts have exact numbers of tokens; checked with the counter
    """

    units: Units
    first: int
    later: int
    start_later: bool
    source: str
    exact: bool


class Prompter:
    """Makes all messages of a request, deterministically and in any order of calls."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe = recipe
        self._seed = seed & _MASK
        self._units = np.array(recipe.units.texts, dtype=object)
        self._places = np.random.default_rng((self._seed, 0)).permutation(len(self._units))
        self._shared = lru_cache(_CACHED)(lambda key, count: "".join(self._drawn((self._seed, 1, key & _MASK), count)))

    def with_seed(self, seed: int) -> Prompter:
        """A prompter for another run, with other prompts."""
        return Prompter(self.recipe, seed)

    @property
    def enough_tokens(self) -> int:
        """The minimum number of tokens of a first prompt without a shared prefix."""
        return self.recipe.first + 1

    def describe(self) -> Mapping[str, Any]:
        """Properties for the report, plain data."""
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
        later_turn = bool(ask.history)
        recipe = self.recipe
        begin = START if recipe.start_later or not later_turn else ""
        room = self._room(ask.input_tokens - (recipe.later if later_turn else recipe.first))
        parts = [begin]
        for piece in ask.shared:
            count = min(self._room(piece.tokens), room)
            parts.append(self._shared(piece.key, count))
            room -= count
        own = self._spelled(ask.index) + self._drawn((self._seed, 2, ask.index & _MASK), room)
        return (*ask.history, PromptMessage("user", "".join(parts + own[:room])))

    def _room(self, tokens: int) -> int:
        """The number of units with that many tokens."""
        each = self.recipe.units.each
        return max(tokens if each == 1.0 else round(tokens / each), 0)

    def _spelled(self, index: int) -> list[str]:
        """The index in as many digits as ``INDEXES`` needs; the digits are units, permuted by the seed."""
        base = len(self._places)
        digits = []
        left = INDEXES
        while left > 0:
            index, digit = divmod(index, base)
            digits.append(str(self._units[self._places[digit]]))
            left //= base
        return digits

    def _drawn(self, seed: tuple[int, ...], count: int) -> list[str]:
        """Random units; fewer of the same seed are a prefix of more."""
        draws = np.random.default_rng(seed).random(count)
        drawn: list[str] = self._units[(draws * len(self._units)).astype(np.intp)].tolist()
        return drawn


def make_prompter(counter: TokenCounter | None, *, chat: bool, seed: int) -> Prompter:
    """A prompter for the tokenizer of ``counter``, checked with trial prompts. Without a counter, a word is one token.

    chat  whether the endpoint takes messages; otherwise one text
    """
    units = find_units(counter)
    if counter is None or units.start is None:
        return Prompter(Recipe(units, 1, 1, chat, "not counted; one word is taken as one token", exact=False), seed)
    later = _later(counter, units) if chat else 0
    recipe = Recipe(units, units.start, units.start if later is None else later, chat, counter.source, units.exact)
    prompter = Prompter(recipe, seed)
    if recipe.exact:  # except for trial prompts that are too short for the template
        asks = [ask for ask in TRIALS if ask.input_tokens >= prompter.enough_tokens]
        counts = [(counter.count(prompter(ask)), ask.input_tokens) for ask in asks]
        exact = [count == asked for count, asked in counts if count is not None]
        prompter.recipe = dataclasses.replace(recipe, exact=bool(exact) and all(exact))
    return prompter


def _later(counter: TokenCounter, units: Units) -> int | None:
    """Tokens that a second turn adds besides its units and the completion before it; None if the chat is refused."""
    text = START + "".join(units.texts[:8])
    once = (PromptMessage("user", text),)
    first, second = counter.count(once), counter.count((*once, PromptMessage("assistant", text), *once))
    if first is None or second is None:
        return None
    return max(second - first - 1 - round(16 * units.each), 0)
