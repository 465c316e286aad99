"""A layer's paged cache for tests: shuffled blocks full of stale values, and plain arrays put into it.

The layer belongs to the second of three KV groups; the tables of the other two lead astray.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Field
from twofold.backends.cpu.kernels.cache import TILE, LayerBlock
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.core.kv_layout import KVType

GROUP, GROUPS = 1, 3
STALE = 1000.0
"""Size of what earlier sequences left behind: enough to spoil every sum that lets it in."""


class PagedLayer:
    """Blocks for sequences of up to ``lengths`` positions. Blocks are handed out in a random order, some to nobody."""

    def __init__(self, shape: LayerBlock, lengths: Sequence[int], seed: int = 0) -> None:
        self.shape = shape
        rng = np.random.default_rng(seed)
        counts = [-(-length // shape.block_size) for length in lengths]
        blocks = iter(rng.permutation(sum(counts) + 3))
        self.all_tables = rng.integers(0, sum(counts) + 3, (GROUPS, len(lengths), max(counts) + 1), np.int32)
        self.tables = self.all_tables[GROUP]
        for row, count in zip(self.tables, counts, strict=True):
            row[:count] = [next(blocks) for _ in range(count)]
        size = (sum(counts) + 3, shape.kv_heads, 2, shape.block_size * shape.head_dim)
        self.elements = (rng.standard_normal(size) * STALE).astype(np.float16 if shape.dtype == "f16" else np.float32)

    @property
    def keys(self) -> NDArray[np.generic]:
        """[block, head, tile, head_dim, 16]"""
        tiles = self.shape.block_size // TILE
        return self.elements[:, :, 0].reshape(*self.elements.shape[:2], tiles, self.shape.head_dim, TILE)

    @property
    def values(self) -> NDArray[np.generic]:
        """[block, head, position, head_dim]"""
        return self.elements[:, :, 1].reshape(*self.elements.shape[:2], self.shape.block_size, self.shape.head_dim)

    def put(self, sequence: int, keys: NDArray[np.generic], values: NDArray[np.generic]) -> None:
        """Writes keys and values [position, head, head_dim] from position 0 on, rounded as they are cached."""
        blocks, offsets = self.places(sequence, np.arange(len(keys)))
        self.keys[blocks, :, offsets // TILE, :, offsets % TILE] = keys
        self.values[blocks, :, offsets] = values

    def get(self, sequence: int, length: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Copies of the keys and values [position, head, head_dim] of the first positions."""
        blocks, offsets = self.places(sequence, np.arange(length))
        return self.keys[blocks, :, offsets // TILE, :, offsets % TILE], self.values[blocks, :, offsets]

    def places(self, sequence: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The blocks of positions, and where in them."""
        size = self.shape.block_size
        return self.tables[sequence, positions // size], positions % size

    def arguments(self) -> dict[str, Field]:
        return {
            "cache": self.elements,
            "group": GROUP,
            "block_bytes": self.shape.nbytes,
            "head_bytes": self.shape.head_bytes,
            "block_size": self.shape.block_size,
        }

    def step(self) -> dict[StepFields, Field]:
        sequences, width = self.tables.shape
        return {
            StepFields.TABLES: self.all_tables,
            StepFields.TABLE_STRIDE: width,
            StepFields.GROUP_STRIDE: sequences * width,
        }


def shape_of(kv_heads: int, head_dim: int, dtype: KVType, block_size: int = 16) -> LayerBlock:
    return LayerBlock(kv_heads, head_dim, block_size, dtype)
