"""Synthetic requests by their index, and the prefixes that their prompts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import Ask, Shared
from twofold.bench.load.checks import MAX_TOKENS, number, whole
from twofold.bench.load.lengths import Draws, Lengths, RandomStream
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Every prompt belongs to one of ``groups``; all prompts of a group begin with the same tokens.

    fraction   of each prompt that is shared, from 0 to 1; or instead of it
    tokens     shared tokens of each prompt, as of a system prompt; a shorter prompt is shared whole
    zipf       skew of the groups: group k = 1, 2, … is sampled in proportion to 1/k^zipf; 0 is uniform

    Raises ParameterError for invalid values.
    """

    fraction: float | None = None
    tokens: int | None = None
    groups: int = 1
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.tokens is None):
            raise ParameterError("A shared prefix has either a fraction or a number of tokens.", param="shared")
        if self.fraction is not None:
            number("the shared fraction", self.fraction, 0, 1)
        if self.tokens is not None:
            whole("shared tokens", self.tokens, 0, MAX_TOKENS)
        whole("prefix groups", self.groups, 1, 1_000_000)
        number("zipf", self.zipf, 0, 10)

    def describe(self) -> Mapping[str, Any]:
        size = {"fraction": self.fraction} if self.tokens is None else {"tokens": self.tokens}
        return size | {"groups": self.groups, "zipf": self.zipf}

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """(size,) groups, from 0."""
        if self.zipf == 0:
            return rng.integers(self.groups, size=size)
        weights = np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf
        edges = np.cumsum(weights / weights.sum())
        drawn = np.searchsorted(edges, rng.random(size), side="right")
        return np.minimum(drawn, self.groups - 1).astype(np.int64)

    def pieces(self, group: int, input_tokens: int) -> tuple[Shared, ...]:
        """The shared prefix of a prompt of ``group``."""
        asked = self.tokens if self.tokens is not None else round((self.fraction or 0.0) * input_tokens)
        shared = min(asked, input_tokens)
        return (Shared(group, shared),) if shared else ()


class RandomRequests:
    """Requests with lengths from two distributions; request ``index`` of a seed is always the same."""

    def __init__(
        self,
        input_tokens: Lengths,
        output_tokens: Lengths,
        *,
        seed: int = 0,
        shared: SharedPrefix | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self._description = {
            "input_tokens": input_tokens.describe(),
            "output_tokens": output_tokens.describe(),
            "shared": None if shared is None else shared.describe(),
            "seed": seed,
        }
        self._input = Draws[int](seed, RandomStream.INPUT, input_tokens.draw)
        self._output = Draws[int](seed, RandomStream.OUTPUT, output_tokens.draw)
        self._shared = shared
        self._groups = None if shared is None else Draws[int](seed, RandomStream.GROUPS, shared.draw)
        self._fields: Mapping[str, Any] = fields or {}

    def ask(self, index: int, due_s: float) -> Ask:
        """Request ``index`` of the run, due at ``due_s``."""
        tokens = self._input[index]
        pieces: tuple[Shared, ...] = ()
        if self._shared is not None and self._groups is not None:
            pieces = self._shared.pieces(self._groups[index], tokens)
        return Ask(index, due_s, tokens, self._output[index], pieces, fields=self._fields)

    def describe(self) -> Mapping[str, Any]:
        return self._description
