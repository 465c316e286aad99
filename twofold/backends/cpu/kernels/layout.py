"""The layout of quantised weights in memory, and the kernels that pack them from the file's rows, once, at load.

A matrix of ``rows`` outputs × ``columns`` inputs is divided into **panels** of 16 outputs. A panel holds all numbers of
its outputs, region after region, each in ascending k:

    codes     for each chunk of 32 k, the planes that make up a code (one 64-byte line is 4 k of 16 outputs):
                byte     8 lines   line q                    = k-quad q
                nibble   4 lines   line q, low and high half  = k-quads q and q + 4
                crumb    2 lines   line l, bits 2j, 2j+1      = k-quad l + 2·j
                bit      1 line    bit j                      = k-quad j
    scales    for each group of 16 or 32 k, 16 numbers: float16, or small integers
    minima    the same, where the format has them
    supers    for each 256 k, float16 factors of the integer scales (and minima), 16 of each

A line is one load. The code of output ``column`` for k = 4q + j is byte 4·column + j of k-quad q. Every integer format
of GGUF consists of planes, scales, and minima or a constant offset: value = scale · code + minimum, or scale · (code −
offset). The packed size is that of the file, plus at most 4 % for scales that K-quants store in 6 bits.

A matrix of floats keeps its values. Its panels are [columns][16]: 16 outputs of each k.

A row of quantised activations holds a code for each value, then a scale for each 32 values, then the sums of codes that
its readers' formats need, region after region (``ActRow``), for each 16 or 32 values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Final, Literal

from twofold.backends.cpu.kernels.ir import F16, I16, I32, Kernel, Value
from twofold.backends.cpu.kernels.raw import LOW1, LOW2, LOW4, RAW
from twofold.backends.cpu.kernels.signature import KernelArguments, kernel
from twofold.core.values import BY_NAME, IQ4_NL_VALUES

PANEL: Final = 16
CHUNK: Final = 32
SUPER: Final = 256

ActSum = tuple[int, int]
"""Group and offset of a format. Its sum for a group of activations is −offset · Σ act in int32, where the dot product
begins; for formats with minima, which have no offset, it is Σ act · act_scale in float32."""
PlaneKind = Literal["byte", "nibble", "crumb", "bit"]
PLANE_BITS: Final[dict[PlaneKind, int]] = {"byte": 8, "nibble": 4, "crumb": 2, "bit": 1}


@dataclass(frozen=True, slots=True)
class Plane:
    """Some bits of every code; ``shift`` is the place of the lowest in the code."""

    kind: PlaneKind
    shift: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code; also the 64-byte lines of a chunk."""
        return PLANE_BITS[self.kind]


@dataclass(frozen=True, slots=True)
class Packing:
    """An integer format as planes, scales and minima. ``group`` is the number of values that share a scale.

    scale    "f16": one for each group. "i8", "u8": integers times the super-block's float16. "u4u4": scale and minimum
             share a byte; the low half is the scale.
    minimum  "offset": none; ``offset`` is subtracted from codes. "f16": its own number, which is added. "u8", "u4u4":
             integers times the super-block's second float16, which are subtracted.
    lookup   if given, codes are indices into it; 128 is added to its values to make them unsigned.
    """

    name: str
    planes: tuple[Plane, ...]
    group: int
    scale: Literal["f16", "i8", "u8", "u4u4"]
    minimum: Literal["offset", "f16", "u8", "u4u4"]
    offset: int = 0
    lookup: tuple[int, ...] | None = None

    @property
    def has_supers(self) -> bool:
        return self.scale != "f16"

    @property
    def block(self) -> int:
        """Values of a block: of a super-block, where the format has them."""
        return SUPER if self.has_supers else CHUNK

    @property
    def code_bits(self) -> int:
        """Bits of an unsigned code as it enters the dot product."""
        return 8 if self.lookup else sum(plane.bits for plane in self.planes)

    @property
    def act_sum(self) -> ActSum:
        """The sum of activations that the format needs."""
        return self.group, self.offset

    def regions(self, columns: int) -> dict[str, int]:
        """Byte offset of each region in a panel, in order; the last is ``end``, a multiple of 64."""
        sizes = {f"plane{i}": columns // CHUNK * 64 * plane.bits for i, plane in enumerate(self.planes)}
        groups = columns // self.group
        sizes["scales"] = groups * PANEL * (2 if self.scale == "f16" else 1)
        if self.minimum in {"f16", "u8"}:
            sizes["minima"] = groups * PANEL * (2 if self.minimum == "f16" else 1)
        if self.has_supers:
            sizes["supers"] = columns // SUPER * PANEL * 2
            if self.minimum != "offset":
                sizes["super_minima"] = columns // SUPER * PANEL * 2
        starts = list(accumulate(sizes.values(), initial=0))
        return {**dict(zip(sizes, starts, strict=False)), "end": -(-starts[-1] // 64) * 64}


FLOAT_FORMATS: Final = ("F32", "F16", "BF16")
NIBBLE, BYTE = Plane("nibble"), Plane("byte")
PACKINGS: Final[dict[str, Packing]] = {
    p.name: p
    for p in (
        Packing("Q4_0", (NIBBLE,), 32, "f16", "offset", 8),
        Packing("Q4_1", (NIBBLE,), 32, "f16", "f16"),
        Packing("Q5_0", (NIBBLE, Plane("bit", 4)), 32, "f16", "offset", 16),
        Packing("Q5_1", (NIBBLE, Plane("bit", 4)), 32, "f16", "f16"),
        Packing("Q8_0", (BYTE,), 32, "f16", "offset", 128),
        Packing("IQ4_NL", (NIBBLE,), 32, "f16", "offset", 128, IQ4_NL_VALUES),
        Packing("Q2_K", (Plane("crumb"),), 16, "u4u4", "u4u4"),
        Packing("Q3_K", (Plane("crumb"), Plane("bit", 2)), 16, "i8", "offset", 4),
        Packing("Q4_K", (NIBBLE,), 32, "u8", "u8"),
        Packing("Q5_K", (NIBBLE, Plane("bit", 4)), 32, "u8", "u8"),
        Packing("Q6_K", (NIBBLE, Plane("crumb", 4)), 16, "i8", "offset", 32),
    )
}


ACT_SUMS: Final[tuple[ActSum, ...]] = tuple(sorted({p.act_sum for p in PACKINGS.values()}))
"""The sums that formats need, in the order of their regions."""


@dataclass(frozen=True, slots=True)
class ActRow:
    """A row of quantised activations of ``columns`` values, with the ``sums`` that its readers need."""

    columns: int
    sums: frozenset[ActSum]

    def offset(self, wanted: ActSum | None = None) -> int:
        """Bytes of the row before the region of a sum; without one, of the whole row."""
        before = ACT_SUMS if wanted is None else ACT_SUMS[: ACT_SUMS.index(wanted)]
        return self.columns // CHUNK * (CHUNK + 4 + sum(4 * CHUNK // each[0] for each in before if each in self.sums))

    @property
    def mask(self) -> int:
        """``sums`` as bits, in the order of ``ACT_SUMS``."""
        return sum(1 << i for i, each in enumerate(ACT_SUMS) if each in self.sums)


def panel_bytes(name: str, columns: int) -> int:
    """Bytes of a panel in the format ``name``, whole cache lines."""
    if name in PACKINGS:
        return PACKINGS[name].regions(columns)["end"]
    return -(-columns * PANEL * BY_NAME[name].block_bytes // 64) * 64


PACK_FIELDS = ("source", "row_bytes", "rows", "target", "panel_bytes", "blocks")
"""Arguments of a packing kernel, 8 bytes each. A row has ``blocks`` blocks; in a float format, values."""
PACK_POINTERS = frozenset({"source", "target"})


def pack_kernel(name: str) -> Kernel:
    """Packs panels ``begin … end`` of a matrix in the format ``name``. Outputs past its last row keep their zeros."""
    with kernel(f"pack_{name}", PACK_FIELDS, PACK_POINTERS) as (k, f, units):
        (_pack_codes if name in PACKINGS else _pack_floats)(k, f, units, name)
    return k


def _pack_floats(k: Kernel, f: KernelArguments, units: Iterator[Value], name: str) -> None:
    size = BY_NAME[name].block_bytes
    kind = I32 if size == 4 else I16
    for panel in units:
        base = f["target"] + panel * f["panel_bytes"]
        for output in k.range(0, k.smin(f["rows"] - panel * PANEL, PANEL)):
            row = f["source"] + (panel * PANEL + output) * f["row_bytes"]
            for column in k.range(0, f["blocks"]):
                k.store(k.load(kind, row + column * size), base + (column * PANEL + output) * size)


def _pack_codes(k: Kernel, f: KernelArguments, units: Iterator[Value], name: str) -> None:
    packing, blocks, block_bytes = PACKINGS[name], f["blocks"], BY_NAME[name].block_bytes
    starts = {name: (blocks * offset) for name, offset in packing.regions(packing.block).items() if name != "end"}
    if not packing.has_supers:
        starts = {name: (blocks * offset) >> 3 for name, offset in packing.regions(SUPER).items() if name != "end"}
    for panel in units:
        base = f["target"] + panel * f["panel_bytes"]
        regions = {name: base + start for name, start in starts.items()}
        for column in k.range(0, k.smin(f["rows"] - panel * PANEL, PANEL)):
            row = f["source"] + (panel * PANEL + column) * f["row_bytes"]
            for block in k.range(0, blocks):
                _pack_block(k, packing, row + block * block_bytes, regions, block, column)


def _pack_block(
    k: Kernel, packing: Packing, raw: Value, regions: dict[str, Value], block: Value, column: Value
) -> None:
    chunks = packing.block // CHUNK
    for chunk in range(chunks):
        quads = RAW[packing.name].quads(k, raw, chunk)
        index = block * chunks + chunk
        for number, plane in enumerate(packing.planes):
            line = regions[f"plane{number}"] + index * (64 * plane.bits) + column * 4
            for i, word in enumerate(_plane_words(plane.kind, plane.shift, quads)):
                k.store(word, line + 64 * i)
    _pack_numbers(k, packing, raw, regions, block, column)


def _plane_words(kind: str, shift: int, quads: list[Value]) -> list[Value]:
    """The four bytes of one output in each line of a plane."""
    if kind == "byte":
        return quads
    moved = [q >> shift for q in quads] if shift else quads
    if kind == "nibble":
        return [(moved[q] & LOW4) | (moved[q + 4] & LOW4) << 4 for q in range(4)]
    if kind == "crumb":
        return [reduce(or_, [(moved[line + 2 * j] & LOW2) << 2 * j for j in range(4)]) for line in range(2)]
    return [reduce(or_, [(moved[j] & LOW1) << j for j in range(8)])]


def _pack_numbers(
    k: Kernel, packing: Packing, raw: Value, regions: dict[str, Value], block: Value, column: Value
) -> None:
    form = RAW[packing.name]
    scales, minima = ("supers", "super_minima") if packing.has_supers else ("scales", "minima")
    k.store(k.load(F16, raw + form.half_scale), regions[scales] + (block * PANEL + column) * 2)
    if form.half_minimum is not None:
        k.store(k.load(F16, raw + form.half_minimum), regions[minima] + (block * PANEL + column) * 2)
    if form.small is None:
        return
    groups = packing.block // packing.group
    for group in range(groups):
        scale, minimum = form.small(k, raw, group)
        at = (block * groups + group) * PANEL + column
        k.store(scale, regions["scales"] + at)
        if minimum is not None:
            k.store(minimum, regions["minima"] + at)
