"""A layer's paged cache for tests: shuffled blocks full of stale values, and plain arrays put into it.

The layer belongs to the second of three KV groups; the tables of the other two lead astray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Field
from twofold.backends.cpu.kernels.cache import TILE, LayerBlock, tile_bytes
from twofold.backends.cpu.kernels.signature import StepFields
from twofold.backends.kv_codes import HeadCodes, code_8, code_v4
from twofold.core.kv_layout import INTEGER_TYPES, KVType

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
        tiles = (sum(counts) + 3, shape.kv_heads, shape.block_size // TILE)
        if shape.dtype in INTEGER_TYPES:
            self.elements: NDArray[np.generic] = np.zeros(
                (*tiles, sum(tile_bytes(shape.head_dim, shape.dtype))), np.uint8
            )
            for sequence, length in enumerate(lengths):
                stale = rng.standard_normal((2, length, shape.kv_heads, shape.head_dim)) * STALE
                self.put(sequence, *stale.astype(np.float32))
        else:
            size = (*tiles, 2 * TILE * shape.head_dim)
            self.elements = stored(rng.standard_normal(size) * STALE, shape.dtype)

    def put(self, sequence: int, keys: NDArray[np.generic], values: NDArray[np.generic]) -> None:
        """Writes keys and values [position, head, head_dim] from position 0 on, rounded as they are cached."""
        for part, numbers in enumerate((keys, values)):
            self.write(sequence, part, stored(numbers, self.shape.dtype, part))

    def get(self, sequence: int, length: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Copies of the keys and values [position, head, head_dim] of the first positions; bfloat16 as float32."""
        keys, values = (loaded(self.read(sequence, length, part), self.shape.dtype, part) for part in range(2))
        return keys, values

    def read(self, sequence: int, length: int, part: int) -> NDArray[np.generic]:
        """What is cached of the keys (part 0) or values of the first positions: [position, head, elements]."""
        found: NDArray[np.generic] = self.elements[self._places(sequence, length, part)]
        return found

    def write(self, sequence: int, part: int, elements: NDArray[np.generic]) -> None:
        """The inverse of ``read``."""
        self.elements[self._places(sequence, len(elements), part)] = elements

    def _places(self, sequence: int, length: int, part: int) -> tuple[NDArray[np.int64], ...]:
        """Indices of the elements [position, head, elements] of the first positions."""
        size, dim = self.shape.block_size, self.shape.head_dim
        columns = stored(np.zeros((1, dim)), self.shape.dtype, part).shape[-1]
        at, head, d = np.ogrid[:length, : self.shape.kv_heads, :columns]
        inside, tile = at % size % TILE, at % size // TILE
        if self.shape.dtype in INTEGER_TYPES:
            place = self._integer_places(part, inside, d)
        else:
            pair = 2 if self.shape.dtype == "bf16" else 1
            if part == 0:
                place = d // pair * TILE * pair + inside * pair + d % pair
            else:
                place = TILE * dim + inside // pair * pair * dim + d * pair + inside % pair
        return self.tables[sequence, at // size], head, tile, place

    def _integer_places(self, part: int, inside: NDArray[np.int64], d: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices in a tile: of codes, then of a group's step and minimum, then of the scale."""
        dim, (key_bytes, value_bytes) = self.shape.head_dim, tile_bytes(self.shape.head_dim, self.shape.dtype)
        if part == 0:
            scale = TILE * dim + inside * 2 + d - dim
            return np.where(d < dim, d // 2 * 2 * TILE + inside * 2 + d % 2, scale)
        codes, groups = (dim, 0) if self.shape.dtype == "q8" else (dim // 2, dim // 32)
        number = d - codes
        pairs = TILE * codes + inside // 2 * 4 * groups + number // 2 * 4 + inside % 2 * 2 + number % 2
        scale = value_bytes - 2 * TILE + inside * 2 + number - 2 * groups
        place = np.where(d < codes, inside // 2 * 2 * codes + d * 2 + inside % 2, pairs)
        return key_bytes + np.where(number < 2 * groups, place, scale)

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


def stored(x: NDArray[np.generic], dtype: KVType, part: int = 0) -> NDArray[np.generic]:
    """Numbers [..., head_dim] as they are cached; the bits of bfloat16 as uint16, rounded to nearest, to even, 0 below
    2⁻⁵⁰. Integers are codes and scales in bytes, of keys or (part 1) values."""
    if dtype in INTEGER_TYPES:
        coded = code_v4(x.astype(np.float32)) if (dtype, part) == ("k8v4", 1) else code_8(x.astype(np.float32))
        scale = (coded.scale.view(np.uint32) >> 16).astype(np.uint16)[..., None].view(np.uint8)
        if coded.step is None or coded.minimum is None:
            return np.concatenate([coded.codes.view(np.uint8), scale], axis=-1)
        halves = coded.codes.view(np.uint8).reshape(*x.shape[:-1], -1, 2, 16)
        codes = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*x.shape[:-1], -1)
        numbers = np.stack([coded.step, coded.minimum], axis=-1).view(np.uint8).reshape(*x.shape[:-1], -1)
        return np.concatenate([codes, numbers, scale], axis=-1)
    if dtype != "bf16":
        return x.astype({"f16": np.float16, "f32": np.float32}[dtype])
    bits = np.where(abs(x) < 2.0**-50, 0, x).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def loaded(elements: NDArray[Any], dtype: KVType, part: int) -> NDArray[Any]:
    """The numbers that are cached: [..., head_dim]."""
    if dtype == "bf16":
        return of_bfloat16(elements)
    if dtype not in INTEGER_TYPES:
        return elements
    scale = of_bfloat16(np.ascontiguousarray(elements[..., -2:]).view(np.uint16)[..., 0])
    if (dtype, part) != ("k8v4", 1):
        return HeadCodes(elements[..., :-2].view(np.int8), scale).decoded()
    dim = (elements.shape[-1] - 2) * 16 // 9
    halves = elements[..., : dim // 2].reshape(*elements.shape[:-1], -1, 1, 16)
    codes = np.concatenate([halves & 15, halves >> 4], axis=-2).reshape(*elements.shape[:-1], dim)
    numbers = np.ascontiguousarray(elements[..., dim // 2 : -2]).view(np.int8)
    return HeadCodes(codes.view(np.int8), scale, numbers[..., ::2], numbers[..., 1::2]).decoded()


def of_bfloat16(bits: NDArray[np.generic]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def shape_of(kv_heads: int, head_dim: int, dtype: KVType, block_size: int = 16) -> LayerBlock:
    return LayerBlock(kv_heads, head_dim, block_size, dtype)
