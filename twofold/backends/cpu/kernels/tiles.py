"""Linear layers of many rows on a tile unit (see ``isa``): 16 rows by the 16 outputs of each panel.

Both operands are read from where they lie: activations as they are stored, one row of the tile for each, and unpacked
panels, whose line of 64 bytes is a k-quad of 16 outputs. A product is one group of weights:

    dots [16 × 16 int32]  =  acts [16 × group int8] · codes [group / 4 × 64 uint8]

The float32 steps of the numerics contract (see ``linear``) stay with the vector units, which work at the same time:
products of one batch of chunks are spread between the multiply-adds of the batch before.

    batch b + 1, tile unit      load codes and acts, zero, multiply, store         → dots of odd or even batches
    batch b, vector units       for each group and row: multiply-adds to the sums  ← dots of even or odd batches

A product takes about 16 cycles whatever its size, so its tile is stored one step later. Sums and dots lie in the
worker's scratch memory, in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from twofold.backends.cpu.kernels.ir import F32X16, I32X16, Kernel, Value
from twofold.backends.cpu.kernels.isa import TileShape, TileUnit

TILE_ROWS: Final = 16
DOTS_BYTES: Final = 64 * TILE_ROWS
"""Bytes of the dot products of one group, 16 rows and one panel."""
BATCH: Final = 2
"""Chunks of a batch."""
ROWS_AT_ONCE: Final = 8
"""Rows whose sums are in registers at a time: those of two panels fill 16 of 32."""
EXACT: Final = float(3 << 22)
EXACT_BITS: Final = 0x4B400000
"""1.5 · 2²³ and its bits. For |i| < 2²² the float32 of bits EXACT_BITS + i is EXACT + i."""

DOTS, ACTS, CODES = 0, 4, 6
"""The first tile register of each kind: four of dots (two steps, two panels), two of acts, two of codes."""


Chunk = Value | int
Place = tuple[Value, Value | int]
"""The address of a tile, and the bytes from one of its rows to the next."""


class GroupNumbers(Protocol):
    """Scale, and minimum if there is one, of one group of a panel's 16 outputs."""

    @property
    def scale(self) -> Value: ...

    def add(self, acc: Value, scaled_dot: Value, act_scale: Value, act_sum: Value | None) -> Value: ...


class UnpackedWeights(Protocol):
    """Unpacked panels: codes and numbers of group ``part`` of a chunk."""

    def group_at(self, chunk: Chunk, part: int, panel: int) -> Place: ...

    def numbers(self, chunk: Chunk, part: int, panel: int) -> GroupNumbers: ...


class QuantisedRows(Protocol):
    """16 rows of activations: codes of a group, scale of a chunk, and of a group where its dot product begins (None: at
    0) or the scaled sum that a minimum needs."""

    def group_at(self, chunk: Chunk, part: int, groups: int) -> Place: ...

    def scale(self, row: int, chunk: Chunk) -> Value: ...

    def start(self, row: int, chunk: Chunk, part: int) -> Value | None: ...

    def total(self, row: int, chunk: Chunk, part: int) -> Value | None: ...


def tile_shapes(group: int) -> list[TileShape]:
    """The shape of each tile register for groups of ``group`` weights."""
    return [(TILE_ROWS, 64)] * 4 + [(TILE_ROWS, group)] * 2 + [(group // 4, 64)] * 2


def dots_bytes(groups: int, panels: int) -> int:
    """Bytes of scratch for the dot products of two batches of chunks with ``groups`` groups."""
    return 2 * BATCH * groups * panels * DOTS_BYTES


@dataclass(frozen=True, slots=True)
class TileProduct:
    """16 rows × ``width`` panels. ``sums`` and ``dots`` are addresses of scratch memory."""

    k: Kernel
    unit: TileUnit
    panels: UnpackedWeights
    acts: QuantisedRows
    groups: int
    width: int
    sums: Value
    dots: Value

    def compute(self, chunks: Value) -> None:
        """Computes the float32 sums of all chunks."""
        k = self.k
        for index in range(TILE_ROWS * self.width):
            k.store(k.splat(F32X16, 0.0), self.sums + 64 * index)
        batches = chunks // BATCH
        with k.when(batches > 0):
            self._all_batches(batches)
        for chunk in k.range(batches * BATCH, chunks):
            for issue in self._products([chunk], self.dots):
                issue()
            for _row in self._sums([chunk], self.dots):
                pass

    def sum(self, first: int, row: int, panel: int) -> Value:
        """The 16 sums of row ``first`` + ``row``."""
        return self.k.load(F32X16, self._sum_at(first + row, panel))

    def _sum_at(self, row: int, panel: int) -> Value:
        return self.sums + 64 * (row * self.width + panel)

    def _all_batches(self, batches: Value) -> None:
        k, half = self.k, dots_bytes(self.groups, self.width) // 2
        for issue in self._products(list(range(BATCH)), self.dots):
            issue()
        for batch in k.range(0, batches):
            # Past the last batch the products of the last are made again: the unit has nothing else to do.
            following = k.smin(batch + 1, batches - 1)
            here, there = (self.dots + (at & 1) * half for at in (batch, batch + 1))
            products = self._products([following * BATCH + i for i in range(BATCH)], there)
            rows = BATCH * self.groups * TILE_ROWS
            issued = 0
            for row, _ in enumerate(self._sums([batch * BATCH + i for i in range(BATCH)], here), 1):
                due = len(products) * row // rows
                for issue in products[issued:due]:
                    issue()
                issued = due

    def _products(self, chunks: Sequence[Chunk], dots: Value) -> list[Callable[[], None]]:
        """The tile unit's operations for ``chunks``, one function for each; a tile is stored one step later."""
        k, unit = self.k, self.unit
        operations: list[Callable[[], None]] = []
        late: list[Callable[[], None]] = []
        steps = [(chunk, part) for chunk in chunks for part in range(self.groups)]
        for step, (chunk, part) in enumerate(steps):
            acts, stride = self.acts.group_at(chunk, part, self.groups)
            operations.append(partial(unit.load, k, ACTS + step % 2, acts, stride))
            stores: list[Callable[[], None]] = []
            for panel in range(self.width):
                codes, line = self.panels.group_at(chunk, part, panel)
                tile = DOTS + step % 2 * 2 + panel
                operations += [
                    partial(unit.load, k, CODES + panel, codes, line),
                    partial(unit.zero, k, tile),
                    partial(unit.multiply, k, tile, ACTS + step % 2, CODES + panel),
                    *late[panel : panel + 1],
                ]
                at = dots + self._dots_offset(step, panel)
                stores.append(partial(unit.store, k, tile, at, 64))
            late = stores
        return operations + late

    def _sums(self, chunks: Sequence[Chunk], dots: Value) -> Iterator[None]:
        """Adds the groups of ``chunks`` to the sums of all rows; yields after each group and row."""
        k = self.k
        steps = [(chunk, part) for chunk in chunks for part in range(self.groups)]
        for first in range(0, TILE_ROWS, ROWS_AT_ONCE):
            rows = range(first, first + ROWS_AT_ONCE)
            sums = {(r, p): self.sum(0, r, p) for r in rows for p in range(self.width)}
            for step, (chunk, part) in enumerate(steps):
                numbers = [self.panels.numbers(chunk, part, panel) for panel in range(self.width)]
                less = [each.scale * k.splat(F32X16, -EXACT) for each in numbers]
                for row in rows:
                    scale, total = self.acts.scale(row, chunk), self.acts.total(row, chunk, part)
                    start = exact_bits(k, self.acts.start(row, chunk, part))
                    for panel, each in enumerate(numbers):
                        dot = k.load(I32X16, dots + (self._dots_offset(step, panel) + 64 * row))
                        scaled = scaled_dot(k, dot, start, each, less[panel])
                        sums[row, panel] = each.add(sums[row, panel], scaled, scale, total)
                    yield
            for (row, panel), value in sums.items():
                k.store(value, self._sum_at(row, panel))

    def _dots_offset(self, step: int, panel: int) -> int:
        return (step * self.width + panel) * DOTS_BYTES


def exact_bits(k: Kernel, start: Value | None) -> Value:
    """EXACT_BITS + ``start``, where a dot product begins."""
    return k.splat(I32X16, EXACT_BITS) if start is None else start + EXACT_BITS


def scaled_dot(k: Kernel, dot: Value, start: Value, numbers: GroupNumbers, less: Value) -> Value:
    """f32(dot) · scale, rounded once, in one multiply-add; ``less`` is −EXACT · scale, ``start`` from ``exact_bits``.

    The float of bits dot + EXACT_BITS is EXACT + dot, and (EXACT + dot) · scale − EXACT · scale is dot · scale before
    it is rounded, because EXACT · scale is exact: no format's scale has more than 19 bits, and EXACT has 2.
    """
    return k.fma((dot + start).as_bits(F32X16), numbers.scale, less)
