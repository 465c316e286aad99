"""Random values by index: for a seed they do not depend on the order of access.

Values are sampled in blocks. Each block has its own generator, seeded with the seed, the stream and the number of the
block. So the length of request 5000 does not depend on earlier accesses, and two loads that differ only in their
arrivals have the same lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import count
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.checks import whole

T = TypeVar("T", int, float)

BLOCK: Final = 1024
"""Values sampled at once."""

_MAX_BLOCKS: Final = 4

Draw: TypeAlias = Callable[[np.random.Generator, int], NDArray[Any]]
"""Samples the given number of values."""


class RandomStream(IntEnum):
    """Purposes of random values. The numbers determine the values of a seed: they never change."""

    ARRIVALS = 0
    INPUT = 1
    OUTPUT = 2
    GROUPS = 3
    TURNS = 4
    SESSIONS = 5


def generator(seed: int, stream: RandomStream, index: int) -> np.random.Generator:
    """The generator of a block, or of a session, of a stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, index)))


class Draws(Generic[T]):
    """The values of one stream; keeps the last blocks. Raises ParameterError for an invalid seed."""

    def __init__(self, seed: int, stream: RandomStream, draw: Draw) -> None:
        self._seed = whole("seed", seed, 0, 2**63 - 1)
        self._stream = stream
        self._draw = draw
        self._blocks: dict[int, list[T]] = {}

    def __getitem__(self, index: int) -> T:
        return self._block(index // BLOCK)[index % BLOCK]

    def __iter__(self) -> Iterator[T]:
        for block in count():
            yield from self._block(block)

    def _block(self, number: int) -> list[T]:
        found = self._blocks.get(number)
        if found is None:
            if len(self._blocks) == _MAX_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            drawn = self._draw(generator(self._seed, self._stream, number), BLOCK)
            found = self._blocks[number] = cast("list[T]", drawn.tolist())
        return found
