"""Linear layers from packed integer weights: y = x · Wᵀ, the numerics contract in one place.

Activations are int8 in groups of 32, each with its scale and the sums of its codes (see ``quantize``). For one row and
one output, whatever the tile, the thread or the company in the batch:

    acc = 0
    for each group of k, ascending:
        dot = Σ code · act                          exact in int32
        acc = fma(f32(dot) · scale, act_scale, acc)
        acc = fma(minimum, act_sum · act_scale, acc)
    y = acc (+ bias) (+ residual)

Two ways through memory give the same bits. A few rows read the packed panel and unpack it in registers (decode: the
panel is read once, at the speed of memory). Many rows unpack two panels at a time into the first-level cache and run
tiles over them (prefill: unpacking is paid once for all rows).

    a tile: ROWS rows × PANELS panels of 16 outputs, one i32 register each while a group lasts

              panel 0      panel 1
    row 0    [16 × i32]   [16 × i32]     ← each act quad is broadcast once, used PANELS times
    row 1    [16 × i32]   [16 × i32]     ← each code quad is loaded once, used ROWS times
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from twofold.backends.cpu.kernels.ir import F32, F32X16, I1, I32, I32X16, I64, Kernel, Value, Var
from twofold.backends.cpu.kernels.isa import Isa
from twofold.backends.cpu.kernels.layout import CHUNK, Packing
from twofold.backends.cpu.kernels.panel import Numbers, PackedPanel, UnpackedPanels, unpacked_chunk_bytes
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments
from twofold.backends.cpu.kernels.tiles import cover, finish

LINEAR_FIELDS: Final = (
    "acts", "act_stride", "weights", "panel_bytes", "chunks", "out", "out_stride", "bias", "residual", "row_count",
    "row_block",
)  # fmt: skip
"""Arguments of a linear kernel, 8 bytes each. ``bias`` and ``residual`` may be null; ``row_count`` is the index of the
step's count of rows; ``row_block`` rows are worked on together so that their activations stay in the cache."""
AHEAD: Final = 8192
"""Bytes ahead of which weights are asked for. The processor's own prefetcher starts anew on every page and panel."""
POINTERS: Final = frozenset({"acts", "weights", "out", "bias", "residual"})


def act_row_bytes(columns: int) -> int:
    """Bytes of a row of quantised activations: codes, scales, group sums and half-group sums (times the scale)."""
    return columns + columns // CHUNK * 16


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows a tile takes at a time: straight from packed panels, and from ``panels`` unpacked ones at once."""

    packed_rows: tuple[int, ...]
    unpacked_rows: tuple[int, ...]
    panels: int
    unpack_from: int

    @staticmethod
    def of(isa: Isa) -> Tiling:
        if isa.registers >= 32:
            return Tiling((12, 8, 4, 2, 1), (12, 8, 4, 2, 1), 2, 17)
        return Tiling((4, 2, 1), (2, 1), 1, 8)


class Activations:
    """Rows of quantised activations, from ``base`` on."""

    def __init__(self, k: Kernel, base: Value, stride: Value, chunks: Value, rows: int) -> None:
        self._k = k
        self._rows = [base + stride * r for r in range(rows)]
        self._chunks = chunks

    def quad(self, row: int, chunk: Value, quad: int) -> Value:
        return self._k.load(I32, self._rows[row] + chunk * CHUNK + 4 * quad)

    def scale(self, row: int, chunk: Value) -> Value:
        return self._number(row, self._chunks * CHUNK + chunk * 4)

    def total(self, row: int, chunk: Value, part: int, groups: int) -> Value:
        """Sum of a weight group's codes times their scale."""
        if groups == 1:
            return self._number(row, self._chunks * (CHUNK + 4) + chunk * 4)
        return self._number(row, self._chunks * (CHUNK + 8) + chunk * 8 + 4 * part)

    def _number(self, row: int, offset: Value) -> Value:
        return self._k.splat(F32X16, self._k.load(F32, self._rows[row] + offset))


class Accumulators:
    """A tile's float32 sums, in registers or (large tiles) in the worker's scratch, which is first-level cache."""

    def __init__(self, k: Kernel, rows: int, panels: int, memory: Value | None) -> None:
        self._k = k
        self._panels = panels
        self._memory = memory
        zero = k.splat(F32X16, 0.0)
        self._vars: list[Var] = []
        for index in range(rows * panels):
            if memory is None:
                self._vars.append(k.var(F32X16, zero))
            else:
                k.store(zero, memory + 64 * index)

    def get(self, row: int, panel: int) -> Value:
        index = row * self._panels + panel
        return self._k.load(F32X16, self._memory + 64 * index) if self._memory else self._vars[index].get()

    def set(self, row: int, panel: int, value: Value) -> None:
        index = row * self._panels + panel
        if self._memory:
            self._k.store(value, self._memory + 64 * index)
        else:
            self._vars[index].set(value)


Codes = Callable[[int, int], Value]
"""(k-quad, panel) → 64 code bytes."""
GroupNumbers = Callable[[int, int], Numbers]
"""(part of the chunk, panel) → the group's scale and minimum."""


@dataclass(frozen=True, slots=True)
class Tile:
    """ROWS × PANELS outputs of one format."""

    k: Kernel
    isa: Isa
    packing: Packing
    rows: int
    panels: int

    def chunk(self, acc: Accumulators, acts: Activations, chunk: Value, codes: Codes, numbers: GroupNumbers) -> None:
        """One chunk of 32 k: the integer dots of each group, then the sums."""
        groups = CHUNK // self.packing.group
        for part in range(groups):
            quads = range(part * 8 // groups, (part + 1) * 8 // groups)
            dots = self._dots(acts, chunk, quads, codes)
            scaled = [numbers(part, panel) for panel in range(self.panels)]
            for row in range(self.rows):
                self._add(acc, row, dots[row], scaled, acts.scale(row, chunk), acts.total(row, chunk, part, groups))

    def _dots(self, acts: Activations, chunk: Value, quads: Sequence[int], codes: Codes) -> list[list[Value]]:
        zero = self.k.splat(I32X16, 0)
        dots = [[zero] * self.panels for _ in range(self.rows)]
        bits = self.packing.code_bits
        for quad in quads:
            weights = [codes(quad, panel) for panel in range(self.panels)]
            for row in range(self.rows):
                act = acts.quad(row, chunk, quad)
                for panel, code in enumerate(weights):
                    dots[row][panel] = self.isa.dot4(self.k, dots[row][panel], code, act, bits)
        return dots

    def _add(
        self, acc: Accumulators, row: int, dots: list[Value], numbers: list[Numbers], scale: Value, total: Value
    ) -> None:
        for panel, dot in enumerate(dots):
            product = dot.to(F32X16) * numbers[panel].scale
            sums = self.k.fma(product, scale, acc.get(row, panel))
            acc.set(row, panel, self.k.fma(numbers[panel].minimum, total, sums))


class LinearKernel:
    """Generates the kernel of one format: outputs of panels ``begin … end`` for all rows of the step."""

    def __init__(self, isa: Isa, packing: Packing) -> None:
        self._isa = isa
        self._packing = packing
        self._tiling = Tiling.of(isa)
        self.k = k = Kernel(f"linear_{packing.name}", KERNEL_PARAMETERS)
        _, step, self._begin, self._end, self._scratch = k.args
        self._fields = KernelArguments(k, LINEAR_FIELDS, POINTERS)
        self._rows = k.load(I64, step + self._fields["row_count"] * 8)

    def generate(self) -> Kernel:
        k = self.k
        few = self._rows < self._tiling.unpack_from
        with k.when(few):
            for panel in k.range(self._begin, self._end):
                cover(k, 0, self._rows, self._tiling.packed_rows, partial(self._packed_tile, panel))
        with k.when(few.equals(0)):
            for first in k.range(0, self._rows, self._fields["row_block"]):
                last = k.smin(first + self._fields["row_block"], self._rows)
                self._many_rows(first, last)
        k.ret()
        return k

    def _many_rows(self, first: Value, last: Value) -> None:
        """Unpacks ``panels`` panels at a time, then the odd ones singly, and runs tiles over the rows."""
        k, wide = self.k, self._tiling.panels
        panel = k.var(I64, self._begin)
        for width in range(wide, 0, -1) if wide == 1 else (wide, 1):
            more = k.var(I1, panel.get() + width <= self._end)
            with k.loop_while(more):
                at = panel.get()
                self._unpack(at, width)
                sizes = self._tiling.unpacked_rows
                cover(k, first, last, sizes, partial(self._unpacked_tile, at, width))
                panel.set(at + width)
                more.set(at + 2 * width <= self._end)

    # -- few rows ---------------------------------------------------------------------------------------------------

    def _packed_tile(self, panel: Value, first_row: Value, rows: int) -> None:
        k, f = self.k, self._fields
        packed = PackedPanel(k, self._isa, self._packing, f["weights"] + panel * f["panel_bytes"], f["chunks"])
        acts = Activations(k, f["acts"] + first_row * f["act_stride"], f["act_stride"], f["chunks"], rows)
        acc = Accumulators(k, rows, 1, None)
        tile = Tile(k, self._isa, self._packing, rows, 1)
        for chunk in k.range(0, f["chunks"]):
            packed.prefetch(chunk, AHEAD)
            tile.chunk(acc, acts, chunk, _codes_of(packed, chunk), _numbers_of(packed, chunk))
        finish(k, f, acc.get, first_row, rows, panel, 1)

    # -- many rows --------------------------------------------------------------------------------------------------

    def _panels_at(self, width: int) -> UnpackedPanels:
        return UnpackedPanels(self.k, self._packing, width, self._scratch + self._acc_bytes())

    def _acc_bytes(self) -> int:
        return 64 * max(self._tiling.unpacked_rows) * self._tiling.panels

    def _unpack(self, panel: Value, width: int) -> None:
        k, f = self.k, self._fields
        unpacked = self._panels_at(width)
        for index in range(width):
            base = f["weights"] + (panel + index) * f["panel_bytes"]
            packed = PackedPanel(k, self._isa, self._packing, base, f["chunks"])
            for chunk in k.range(0, f["chunks"]):
                packed.prefetch(chunk, AHEAD)
                unpacked.unpack(chunk, index, packed)

    def _unpacked_tile(self, panel: Value, width: int, first_row: Value, rows: int) -> None:
        k, f = self.k, self._fields
        unpacked = self._panels_at(width)
        acts = Activations(k, f["acts"] + first_row * f["act_stride"], f["act_stride"], f["chunks"], rows)
        in_memory = 2 * rows * width + 4 > self._isa.registers
        acc = Accumulators(k, rows, width, self._scratch if in_memory else None)
        tile = Tile(k, self._isa, self._packing, rows, width)
        for chunk in k.range(0, f["chunks"]):
            tile.chunk(acc, acts, chunk, partial(unpacked.code, chunk), partial(unpacked.numbers, chunk))
        finish(k, f, acc.get, first_row, rows, panel, width)


def _codes_of(packed: PackedPanel, chunk: Value) -> Codes:
    return lambda quad, _panel: packed.code(chunk, quad)


def _numbers_of(packed: PackedPanel, chunk: Value) -> GroupNumbers:
    return lambda part, _panel: packed.numbers(chunk, part)


def linear_scratch_bytes(packing: Packing, isa: Isa, columns: int) -> int:
    """Bytes of scratch a worker needs for a matrix of ``columns`` inputs."""
    tiling = Tiling.of(isa)
    chunk = unpacked_chunk_bytes(CHUNK // packing.group, tiling.panels)
    return 64 * max(tiling.unpacked_rows) * tiling.panels + columns // CHUNK * chunk
