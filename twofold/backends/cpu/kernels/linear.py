"""Linear layers from packed weights (see ``layout``): y = x · Wᵀ.

With integer weights, activations are int8 in groups of 32, each with its scale and the sums of its codes (see
``rows.quantise_row``). This is the arithmetic of one row and one output, whatever the tile, the thread and the other
rows of the batch:

    acc = 0
    for each group of k, ascending:
        dot = Σ (code − offset) · act                 exact in int32
        acc = fma(f32(dot) · scale, act_scale, acc)
        acc = fma(minimum, Σ act · act_scale, acc)    in formats that have minima
    y = acc (+ bias) (+ residual)

Codes are unsigned in the dot product's instruction, so it begins at −offset · Σ act.

There are two ways through memory, with the same result to the bit. For a few rows, packed panels are unpacked in
registers (decode: each panel is read once, at the speed of memory). For many rows, two panels at a time are unpacked
into the first-level cache, and tiles of rows run over them (prefill: each panel is unpacked once for all rows).
Some processors are faster the first way for any number of rows (``isa.PACKED_ONLY``).

    a tile: ROWS rows × PANELS panels of 16 outputs, each an i32 register while a group is summed

              panel 0      panel 1
    row 0    [16 × i32]   [16 × i32]     ← each act quad is broadcast once and used PANELS times
    row 1    [16 × i32]   [16 × i32]     ← each code quad is loaded once and used ROWS times

With unquantised weights (F32, F16, BF16), activations are float32:

    acc = 0
    for k ascending: acc = fma(w[k], x[k], acc)     float32
    y = acc (+ bias) (+ residual)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from twofold.backends.cpu.kernels.ir import (
    F16,
    F16X16,
    F32,
    F32X16,
    I1,
    I8X16,
    I8X64,
    I16,
    I16X32,
    I32,
    I32X16,
    I64,
    Kernel,
    Type,
    Value,
    Var,
)
from twofold.backends.cpu.kernels.isa import Isa, TileUnit
from twofold.backends.cpu.kernels.layout import CHUNK, PACKINGS, PANEL, SUPER, Packing, Plane
from twofold.backends.cpu.kernels.signature import KERNEL_PARAMETERS, KernelArguments
from twofold.backends.cpu.kernels.tiles import TILE_ROWS, TileProduct, dots_bytes, tile_shapes
from twofold.core.values import BY_NAME

LINEAR_FIELDS: Final = (
    "acts", "act_stride", "act_sums", "weights", "panel_bytes", "chunks", "out", "out_stride", "bias", "residual",
    "row_count", "row_block",
)  # fmt: skip
"""Arguments of a linear kernel, 8 bytes each. ``act_sums`` is where a row of activations has the sums that the format
needs (``layout.ActRow``). ``bias`` and ``residual`` may be null. ``row_count`` is the index of the step's field that
counts rows. ``row_block`` rows are processed together so that their activations stay in the cache."""
FLOAT_LINEAR_FIELDS: Final = (
    "x", "x_stride", "weights", "panel_bytes", "columns", "out", "out_stride", "bias", "residual", "row_count",
)  # fmt: skip
"""Arguments of a float linear kernel, 8 bytes each; as those of a linear kernel, but ``x`` is float32 rows."""
AHEAD: Final = 8192
"""Distance of prefetches of weights, in bytes. The processor's own prefetcher restarts at every page and panel."""
POINTERS: Final = frozenset({"acts", "x", "weights", "out", "bias", "residual"})


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scale and minimum of one group, 16 outputs each, float32. A format with an offset has no minimum."""

    scale: Value
    minimum: Value | None

    def add(self, acc: Value, scaled_dot: Value, act_scale: Value, act_sum: Value | None) -> Value:
        """``acc`` plus one group of a row; ``scaled_dot`` is f32(dot) · scale, ``act_sum`` is Σ act · act_scale."""
        k = acc.kernel
        sums = k.fma(scaled_dot, act_scale, acc)
        return sums if self.minimum is None or act_sum is None else k.fma(self.minimum, act_sum, sums)


class PackedPanel:
    """A packed panel at ``base``; ``chunks`` is columns / 32, a value of the kernel. A tile sees it as its panel 0."""

    def __init__(self, k: Kernel, isa: Isa, packing: Packing, base: Value, chunks: Value) -> None:
        self._k = k
        self._isa = isa
        self._packing = packing
        # Every region is linear in the number of columns; the offsets for 256 columns are those of 8 chunks.
        regions = packing.regions(SUPER).items()
        self._starts = {name: base + ((chunks * offset) >> 3) for name, offset in regions if name != "end"}

    def code(self, chunk: Value, quad: int, _panel: int = 0) -> Value:
        """A k-quad of a chunk as unsigned bytes, lane 4·output + j, loaded for each call: that needs few registers."""
        code: Value | None = None
        for index, plane in enumerate(self._packing.planes):
            part = _plane_quad(self._k, plane, self._starts[f"plane{index}"] + chunk * (64 * plane.bits), quad)
            code = part if code is None else code | part
        assert code is not None
        return self._look_up(code) if self._packing.lookup else code

    def prefetch(self, chunk: Value, ahead: Value | int) -> None:
        """Prefetches the lines that lie ``ahead`` bytes after those of a chunk."""
        for index, plane in enumerate(self._packing.planes):
            line = self._starts[f"plane{index}"] + chunk * (64 * plane.bits) + ahead
            for i in range(plane.bits):
                self._k.prefetch(line + 64 * i)
        for region in ("scales", "minima"):
            if region in self._starts:
                bytes_a_chunk = PANEL * CHUNK // self._packing.group * (2 if self._packing.scale == "f16" else 1)
                self._k.prefetch(self._starts[region] + chunk * bytes_a_chunk + ahead)

    def _look_up(self, codes: Value) -> Value:
        assert self._packing.lookup is not None
        return self._isa.look_up(self._k, tuple(v + 128 for v in self._packing.lookup), codes)

    def numbers(self, chunk: Value, part: int, _panel: int = 0) -> Numbers:
        """Scale and minimum of group ``part`` of a chunk (groups of 16 have a part 1)."""
        packing = self._packing
        group = chunk if packing.group == CHUNK else chunk * 2 + part
        scale = self._scale(group, chunk)
        if packing.minimum == "offset":
            return Numbers(scale, None)
        if packing.minimum == "f16":
            return Numbers(scale, self._half("minima", group))
        region = "minima" if packing.minimum == "u8" else "scales"
        small = self._small(region, group, high=packing.minimum == "u4u4")
        return Numbers(scale, -(small * self._half("super_minima", self._super(chunk))))

    def _scale(self, group: Value, chunk: Value) -> Value:
        if self._packing.scale == "f16":
            return self._half("scales", group)
        return self._small("scales", group, high=False) * self._half("supers", self._super(chunk))

    def _super(self, chunk: Value) -> Value:
        return chunk >> (SUPER // CHUNK).bit_length() - 1

    def _half(self, region: str, index: Value) -> Value:
        return self._isa.widen(self._k, self._k.load(F16X16, self._starts[region] + index * (2 * PANEL)))

    def _small(self, region: str, group: Value, *, high: bool) -> Value:
        small = self._k.load(I8X16, self._starts[region] + group * PANEL)
        if self._packing.scale == "u4u4":
            small = small >> 4 if high else small & 15
        signed = region == "scales" and self._packing.scale == "i8"
        return small.to(I32X16, unsigned=not signed).to(F32X16)


class UnpackedPanels:
    """Adjacent panels, unpacked at ``base``: for each chunk the codes as bytes, then the numbers as float32.

    The order is k-quad 0 of every panel, k-quad 1 of every panel, …; then for each group the scales of every panel and
    the minima of every panel.
    """

    def __init__(self, k: Kernel, packing: Packing, panels: int, base: Value) -> None:
        self._k = k
        self._groups = CHUNK // packing.group
        self._numbers = _numbers_of_a_group(packing)
        self._panels = panels
        self._base = base
        self.chunk_bytes = unpacked_chunk_bytes(packing, panels)

    def code(self, chunk: Value, quad: int, panel: int) -> Value:
        return self._k.load(I8X64, self._code_at(chunk, quad, panel))

    def numbers(self, chunk: Value | int, part: int, panel: int) -> Numbers:
        at = self._numbers_at(chunk, part, panel)
        minimum = self._k.load(F32X16, at + 64 * self._panels) if self._numbers == 2 else None
        return Numbers(self._k.load(F32X16, at), minimum)

    def unpack(self, chunk: Value, panel: int, packed: PackedPanel) -> None:
        for quad in range(CHUNK // 4):
            self._k.store(packed.code(chunk, quad), self._code_at(chunk, quad, panel))
        for part in range(self._groups):
            numbers = packed.numbers(chunk, part)
            at = self._numbers_at(chunk, part, panel)
            self._k.store(numbers.scale, at)
            if numbers.minimum is not None:
                self._k.store(numbers.minimum, at + 64 * self._panels)

    def group_at(self, chunk: Value | int, part: int, panel: int) -> tuple[Value, int]:
        """The address of a group's codes, and the bytes from one k-quad to the next."""
        return self._code_at(chunk, part * (CHUNK // 4 // self._groups), panel), 64 * self._panels

    def _code_at(self, chunk: Value | int, quad: int, panel: int) -> Value:
        return self._base + (chunk * self.chunk_bytes + 64 * (quad * self._panels + panel))

    def _numbers_at(self, chunk: Value | int, part: int, panel: int) -> Value:
        line = self._panels * (8 + self._numbers * part) + panel
        return self._base + (chunk * self.chunk_bytes + 64 * line)


def _numbers_of_a_group(packing: Packing) -> int:
    """A scale, and the minimum if the format has minima."""
    return 1 if packing.offset else 2


def unpacked_chunk_bytes(packing: Packing, panels: int) -> int:
    """Bytes of one unpacked chunk of ``panels`` panels: codes, and the numbers of each group."""
    return 64 * panels * (8 + _numbers_of_a_group(packing) * (CHUNK // packing.group))


def _plane_quad(k: Kernel, plane: Plane, lines: Value, quad: int) -> Value:
    """The plane's bits of a k-quad, moved to their place in the code."""
    line = k.load(I8X64, lines + 64 * (quad % plane.bits))
    if plane.kind == "byte":
        return line
    return _bits(line, quad // plane.bits * plane.bits, plane.bits, plane.shift)


def _bits(line: Value, first: int, count: int, to: int) -> Value:
    """Bits ``first … first + count`` of every byte, moved to bit ``to``; shifted as 16-bit lanes, then masked."""
    wide = line.as_bits(I16X32)
    if first > to:
        wide = wide >> first - to
    elif to > first:
        wide = wide << to - first
    mask = ((1 << count) - 1) << to
    return wide.as_bits(I8X64) & (mask if mask < 128 else mask - 256)


def cover(k: Kernel, first: Value | int, last: Value, sizes: Sequence[int], tile: Callable[[Value, int], None]) -> None:
    """Cuts ``first … last`` into tiles and calls tile(first, size). ``sizes`` descend to 1."""
    start = k.var(I64, first)
    for size in sizes:
        begin = start.get()
        stop = begin + (last - begin) // size * size
        for at in k.range(begin, stop, size):
            tile(at, size)
        start.set(stop)


def finish(
    k: Kernel,
    f: KernelArguments,
    sums: Callable[[int, int], Value],
    first_row: Value,
    rows: int,
    panel: Value,
    panels: int,
) -> None:
    """Stores a tile of ``rows`` × ``panels`` sums, plus bias and residual if the call has them.

    Fields: ``out`` and ``residual``, float32 rows ``out_stride`` bytes apart, and ``bias``; the last two may be null.
    """
    column = panel * (4 * PANEL)
    results = [[k.var(F32X16, sums(r, p)) for p in range(panels)] for r in range(rows)]
    with k.when(k.is_set(f["bias"])):
        for p in range(panels):
            bias = k.load(F32X16, f["bias"] + column + 64 * p)
            for r in range(rows):
                results[r][p].set(results[r][p].get() + bias)
    offsets = [(first_row + r) * f["out_stride"] + column for r in range(rows)]
    with k.when(k.is_set(f["residual"])):
        for r in range(rows):
            for p in range(panels):
                residual = k.load(F32X16, f["residual"] + offsets[r] + 64 * p)
                results[r][p].set(results[r][p].get() + residual)
    for r in range(rows):
        for p in range(panels):
            k.store(results[r][p].get(), f["out"] + offsets[r] + 64 * p)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows of a tile over one packed panel, and over ``panels`` unpacked ones; rows from which panels are unpacked."""

    packed_rows: tuple[int, ...]
    unpacked_rows: tuple[int, ...]
    panels: int
    unpack_from: int

    @property
    def sum_bytes(self) -> int:
        """Bytes of the float32 sums of the largest unpacked tile."""
        return 64 * max(self.unpacked_rows) * self.panels

    @staticmethod
    def of(isa: Isa) -> Tiling:
        if isa.registers >= 32:
            vectors = (12, 8, 4, 2, 1)
            return Tiling(vectors, (TILE_ROWS, *vectors) if isa.tile else vectors, 2, TILE_ROWS + 1)
        return Tiling((4, 2, 1), (4, 2, 1), 1, 8)


class Activations:
    """``rows`` rows of quantised activations from ``first_row`` on."""

    def __init__(self, k: Kernel, packing: Packing, f: KernelArguments, first_row: Value, rows: int) -> None:
        base, stride = f["acts"] + first_row * f["act_stride"], f["act_stride"]
        self._k = k
        self._packing = packing
        self._stride = stride
        self._rows = [base + stride * r for r in range(rows)]
        self._columns = f["chunks"] * CHUNK
        self._sums = f["act_sums"]

    def quad(self, row: int, chunk: Value, quad: int) -> Value:
        return self._k.load(I32, self._rows[row] + chunk * CHUNK + 4 * quad)

    def group_at(self, chunk: Value | int, part: int, groups: int) -> tuple[Value, Value]:
        """The address of a group's codes in the first row, and the bytes from one row to the next."""
        return self._rows[0] + (chunk * CHUNK + part * (CHUNK // groups)), self._stride

    def scale(self, row: int, chunk: Value | int) -> Value:
        return self._k.splat(F32X16, self._k.load(F32, self._rows[row] + (self._columns + chunk * 4)))

    def start(self, row: int, chunk: Value | int, part: int) -> Value | None:
        """−offset · Σ act of one group of weights, int32, if the format has an offset."""
        return self._sum(I32, row, chunk, part) if self._packing.offset else None

    def total(self, row: int, chunk: Value | int, part: int) -> Value | None:
        """Σ act · act_scale of one group of weights, float32, if the format has minima."""
        return None if self._packing.offset else self._sum(F32, row, chunk, part)

    def _sum(self, kind: Type, row: int, chunk: Value | int, part: int) -> Value:
        group = chunk * (CHUNK // self._packing.group) + part
        return self._k.splat(kind.of(16), self._k.load(kind, self._rows[row] + (self._sums + group * 4)))


class Accumulators:
    """A tile's float32 sums: in registers, or for large tiles in the worker's scratch, in the first-level cache."""

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
        """One chunk of 32 k: for each group the integer dot products, then the float32 sums."""
        groups = CHUNK // self.packing.group
        for part in range(groups):
            quads = range(part * 8 // groups, (part + 1) * 8 // groups)
            starts = [acts.start(row, chunk, part) for row in range(self.rows)]
            dots = self._dots(acts, chunk, quads, starts, codes)
            scaled = [numbers(part, panel) for panel in range(self.panels)]
            for row in range(self.rows):
                self._add(acc, row, dots[row], scaled, acts.scale(row, chunk), acts.total(row, chunk, part))

    def _dots(
        self, acts: Activations, chunk: Value, quads: Sequence[int], starts: list[Value | None], codes: Codes
    ) -> list[list[Value]]:
        zero = self.k.splat(I32X16, 0)
        dots = [[start or zero] * self.panels for start in starts]
        bits = self.packing.code_bits
        for quad in quads:
            weights = [codes(quad, panel) for panel in range(self.panels)]
            for row in range(self.rows):
                act = acts.quad(row, chunk, quad)
                for panel, code in enumerate(weights):
                    dots[row][panel] = self.isa.dot4(self.k, dots[row][panel], code, act, bits)
        return dots

    def _add(
        self, acc: Accumulators, row: int, dots: list[Value], numbers: list[Numbers], scale: Value, total: Value | None
    ) -> None:
        for panel, dot in enumerate(dots):
            scaled_dot = dot.to(F32X16) * numbers[panel].scale
            acc.set(row, panel, numbers[panel].add(acc.get(row, panel), scaled_dot, scale, total))


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
        if self._isa.unpacks:
            few = self._rows < self._tiling.unpack_from
            with k.when(few):
                self._packed_rows(0, self._rows)
            with k.when(few.equals(0)):
                self._many_rows()
        else:
            self._by_row_blocks(self._packed_rows)
        k.ret()
        return k

    def _by_row_blocks(self, work: Callable[[Value, Value], None]) -> None:
        k, block = self.k, self._fields["row_block"]
        for first in k.range(0, self._rows, block):
            work(first, k.smin(first + block, self._rows))

    def _packed_rows(self, first: Value | int, last: Value) -> None:
        for panel in self.k.range(self._begin, self._end):
            cover(self.k, first, last, self._tiling.packed_rows, partial(self._packed_tile, panel))

    def _unpacked_rows(self, first: Value, last: Value) -> None:
        """Unpacks ``panels`` panels at a time, then the rest one by one, and runs tiles over the rows."""
        k, wide = self.k, self._tiling.panels
        panel = k.var(I64, self._begin)
        for width in (wide, 1) if wide > 1 else (1,):
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
        acts = Activations(k, self._packing, f, first_row, rows)
        acc = Accumulators(k, rows, 1, None)
        tile = Tile(k, self._isa, self._packing, rows, 1)
        for chunk in k.range(0, f["chunks"]):
            packed.prefetch(chunk, AHEAD)
            tile.chunk(acc, acts, chunk, partial(packed.code, chunk), partial(packed.numbers, chunk))
        finish(k, f, acc.get, first_row, rows, panel, 1)

    # -- many rows --------------------------------------------------------------------------------------------------

    def _many_rows(self) -> None:
        tile = self._isa.tile
        if tile is not None:
            tile.configure(self.k, tile_shapes(self._packing.group))
        self._by_row_blocks(self._unpacked_rows)
        if tile is not None:
            tile.release(self.k)

    def _panels_at(self, width: int) -> UnpackedPanels:
        before = self._tiling.sum_bytes + _dots_bytes(self._packing, self._isa)
        return UnpackedPanels(self.k, self._packing, width, self._scratch + before)

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
        if self._isa.tile is not None and rows == TILE_ROWS:
            self._tile_unit(self._isa.tile, panel, width, first_row)
            return
        k, f = self.k, self._fields
        unpacked = self._panels_at(width)
        acts = Activations(k, self._packing, f, first_row, rows)
        in_memory = 2 * rows * width + 4 > self._isa.registers
        acc = Accumulators(k, rows, width, self._scratch if in_memory else None)
        tile = Tile(k, self._isa, self._packing, rows, width)
        for chunk in k.range(0, f["chunks"]):
            tile.chunk(acc, acts, chunk, partial(unpacked.code, chunk), partial(unpacked.numbers, chunk))
        finish(k, f, acc.get, first_row, rows, panel, width)

    def _tile_unit(self, unit: TileUnit, panel: Value, width: int, first_row: Value) -> None:
        k, f, scratch = self.k, self._fields, self._scratch
        acts = Activations(k, self._packing, f, first_row, TILE_ROWS)
        groups = CHUNK // self._packing.group
        dots = scratch + self._tiling.sum_bytes
        tile = TileProduct(k, unit, self._panels_at(width), acts, groups, width, scratch, dots)
        tile.compute(f["chunks"])
        half = TILE_ROWS // 2
        for first in (0, half):
            finish(k, f, partial(tile.sum, first), first_row + first, half, panel, width)


def _dots_bytes(packing: Packing, isa: Isa) -> int:
    return dots_bytes(CHUNK // packing.group, Tiling.of(isa).panels) if isa.tile else 0


def linear_scratch_bytes(packing: Packing, isa: Isa, columns: int) -> int:
    """Bytes of scratch that a worker needs for a matrix of ``columns`` inputs: sums, dot products, unpacked panels."""
    tiling = Tiling.of(isa)
    chunks = columns // CHUNK * unpacked_chunk_bytes(packing, tiling.panels)
    return tiling.sum_bytes + _dots_bytes(packing, isa) + chunks


# -- unquantised weights ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FloatTiling:
    """Rows of a tile over ``panels`` panels or over one."""

    rows: tuple[int, ...]
    panels: int

    @staticmethod
    def of(isa: Isa) -> FloatTiling:
        if isa.registers >= 32:
            return FloatTiling((6, 4, 2, 1), 4)
        return FloatTiling((2, 1), 2)


def load_floats(k: Kernel, isa: Isa, name: str, lanes: int, at: Value) -> Value:
    """``lanes`` adjacent values of a float format as float32."""
    if name == "F32":
        return k.load(F32.of(lanes), at)
    if name == "F16":
        return isa.widen(k, k.load(F16.of(lanes), at))
    return (k.load(I16.of(lanes), at).to(I32.of(lanes), unsigned=True) << 16).as_bits(F32.of(lanes))


class FloatLinearKernel:
    """Generates the kernel of one float format: outputs of panels ``begin … end`` for all rows of the step."""

    def __init__(self, isa: Isa, name: str) -> None:
        self._isa = isa
        self._name = name
        self._tiling = FloatTiling.of(isa)
        self.k = k = Kernel(f"linear_{name}", KERNEL_PARAMETERS)
        self._fields = KernelArguments(k, FLOAT_LINEAR_FIELDS, POINTERS)
        self._rows = k.load(I64, k.args[1] + self._fields["row_count"] * 8)

    def generate(self) -> Kernel:
        k = self.k
        cover(k, k.args[2], k.args[3], (self._tiling.panels, 1), self._all_rows)
        k.ret()
        return k

    def _all_rows(self, panel: Value, panels: int) -> None:
        cover(self.k, 0, self._rows, self._tiling.rows, lambda row, rows: self._tile(row, rows, panel, panels))

    def _tile(self, first_row: Value, rows: int, panel: Value, panels: int) -> None:
        k, f = self.k, self._fields
        line = PANEL * BY_NAME[self._name].block_bytes
        bases = [f["weights"] + (panel + p) * f["panel_bytes"] for p in range(panels)]
        inputs = [f["x"] + (first_row + r) * f["x_stride"] for r in range(rows)]
        sums = [[k.var(F32X16, 0.0) for _ in range(panels)] for _ in range(rows)]
        for column in k.range(0, f["columns"]):
            weights = [load_floats(k, self._isa, self._name, 16, base + column * line) for base in bases]
            for x, row_sums in zip(inputs, sums, strict=True):
                value = k.splat(F32X16, k.load(F32, x + column * 4))
                for weight, total in zip(weights, row_sums, strict=True):
                    total.set(k.fma(weight, value, total.get()))
        finish(k, f, lambda r, p: sums[r][p].get(), first_row, rows, panel, panels)


def linear_kernel(isa: Isa, name: str) -> Kernel:
    """The linear kernel of the format ``name``."""
    return (LinearKernel(isa, PACKINGS[name]) if name in PACKINGS else FloatLinearKernel(isa, name)).generate()
