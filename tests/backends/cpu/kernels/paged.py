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
        self.elements = stored(rng.standard_normal(size) * STALE, shape.dtype)

    def put(self, sequence: int, keys: NDArray[np.generic], values: NDArray[np.generic]) -> None:
        """Writes keys and values [position, head, head_dim] from position 0 on, rounded as they are cached."""
        for part, numbers in enumerate((keys, values)):
            self.elements[self._places(sequence, len(keys), part)] = stored(numbers, self.shape.dtype)

    def get(self, sequence: int, length: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Copies of the keys and values [position, head, head_dim] of the first positions; bfloat16 as float32."""
        keys, values = (self.elements[self._places(sequence, length, part)] for part in range(2))
        if self.shape.dtype == "bf16":
            return of_bfloat16(keys), of_bfloat16(values)
        return keys, values

    def _places(self, sequence: int, length: int, part: int) -> tuple[NDArray[np.int64], ...]:
        """Indices of the numbers [position, head, head_dim] of the first positions."""
        size, dim = self.shape.block_size, self.shape.head_dim
        at, head, d = np.ogrid[:length, : self.shape.kv_heads, :dim]
        offset, pair = at % size, 2 if self.shape.dtype == "bf16" else 1
        if part == 0:
            place = offset // TILE * TILE * dim + d // pair * TILE * pair + offset % TILE * pair + d % pair
        else:
            place = offset // pair * pair * dim + d * pair + offset % pair
        return self.tables[sequence, at // size], head, np.array(part), place

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


def stored(x: NDArray[np.generic], dtype: KVType) -> NDArray[np.generic]:
    """Numbers as they are cached; the bits of bfloat16 as uint16, rounded to nearest, to even, 0 below 2⁻⁵⁰."""
    if dtype != "bf16":
        return x.astype({"f16": np.float16, "f32": np.float32}[dtype])
    bits = np.where(abs(x) < 2.0**-50, 0, x).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def of_bfloat16(bits: NDArray[np.generic]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def shape_of(kv_heads: int, head_dim: int, dtype: KVType, block_size: int = 16) -> LayerBlock:
    return LayerBlock(kv_heads, head_dim, block_size, dtype)
