"""Prompts that begin alike: how much of each one is shared, and with how many others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import Shared
from twofold.bench.load.checks import MAX_TOKENS, number, whole
from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Every prompt belongs to one of ``groups``, and all prompts of a group begin with the same tokens.

    fraction   of each prompt that is shared, from 0 to 1; or instead of it
    tokens     so many of each, as with a system prompt; a prompt that is shorter is shared whole
    zipf       how unequal the groups are: group k of 1, 2, … is asked for in proportion to 1/k^zipf. 0: all alike

    ParameterError for what is impossible.
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
        how_much = {"fraction": self.fraction} if self.tokens is None else {"tokens": self.tokens}
        return how_much | {"groups": self.groups, "zipf": self.zipf}

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """(size,) groups, from 0."""
        if self.zipf == 0:
            return rng.integers(self.groups, size=size)
        weights = np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf
        edges = np.cumsum(weights / weights.sum())
        drawn = np.searchsorted(edges, rng.random(size), side="right")
        return np.minimum(drawn, self.groups - 1).astype(np.int64)

    def pieces(self, group: int, input_tokens: int) -> tuple[Shared, ...]:
        """How a prompt of ``group`` begins."""
        asked = self.tokens if self.tokens is not None else round((self.fraction or 0.0) * input_tokens)
        shared = min(asked, input_tokens)
        return (Shared(group, shared),) if shared else ()
