"""The paged KV cache: its layout in memory, and the kernels that write it.

One layer's cache is an array of blocks of ``block_size`` positions (a multiple of 16). In a block each KV head has its
tiles of 16 positions, each with its keys, then its values:

    keys      [head_dim][16 positions]     lanes are positions, so a score needs no horizontal sum
    values    [16 positions][head_dim]     lanes are head values, so an output needs none either

Elements are float16 or float32, or bfloat16 in pairs, as dot products of pairs take them:

    keys      [head_dim / 2][16 positions][2]
    values    [8 positions][head_dim][2]

A pair is two numbers of one key, or the same number of two positions. Keys are stored after their norm and rotation.
The types q8 and k8v4 have codes of 8 bits in such pairs, and a bfloat16 scale for each position (``integers``):

    keys      [head_dim / 2][16 positions][2] int8, [16 positions] scales
    q8        [8 positions][head_dim][2] int8, [16 positions] scales
    k8v4      [8 positions][head_dim / 32][16][2] bytes, [8 positions][head_dim / 32][2][2], [16 positions] scales

A byte of k8v4 has values i and i + 16 of a group of 32 of one position, the first in its low half. The two bytes of a
group and position are its scale and its minimum.

The step's block tables map positions to blocks: one table for each sequence and each KV group, which is the layers with
the same attention window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final, Literal

from twofold.backends.cpu.kernels.integers import Codes, code_8, code_v4, finite, spread
from twofold.backends.cpu.kernels.ir import F16, F32, I8, I16, I32, I64, Kernel, Type, Value
from twofold.backends.cpu.kernels.isa import Isa, bfloat16_bits
from twofold.backends.cpu.kernels.rows import float_bits, reciprocal_rms
from twofold.backends.cpu.kernels.signature import KernelArguments, StepFields, kernel, step_count, step_pointer
from twofold.core.kv_layout import INTEGER_TYPES, KV_FORMATS, VALUE_GROUP, KVType, key_value_bytes, key_value_formats
from twofold.core.model import RopePairs

TILE: Final = 16
F16_MAX: Final = 65504.0
BF16_MAX: Final = (2 - 2**-7) * 2.0**127
BF16_LEAST: Final = 2.0**-50
"""Smaller numbers become 0 in bfloat16. Products and their sums are then multiples of 2⁻¹¹⁴, and none is subnormal
(below 2⁻¹²⁶), which processors treat differently."""

CACHE_FIELDS: Final = (
    "x", "x_stride", "cache", "group", "block_bytes", "head_bytes", "block_size", "heads", "weight", "eps", "table",
    "factors", "out", "out_stride",
)  # fmt: skip
CACHE_POINTERS: Final = frozenset({"x", "cache", "weight", "table", "factors", "out"})


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """The content of one layer in one block."""

    kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVType

    @property
    def head_bytes(self) -> int:
        """Bytes of the keys and values of one head."""
        return key_value_bytes(1, self.head_dim, self.block_size, KV_FORMATS[self.dtype])

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values of all heads."""
        return self.kv_heads * self.head_bytes


def tile_bytes(head_dim: int, dtype: KVType) -> tuple[int, int]:
    """Bytes of the keys, and of the values, of a tile of one head."""
    keys, values = (each.nbytes(TILE, head_dim) for each in key_value_formats(KV_FORMATS[dtype]))
    return keys, values


def element(dtype: KVType) -> Type:
    """The type of a cached key; I16 for the bits of a bfloat16."""
    return {"bf16": I16, "f16": F16, "f32": F32, "q8": I8, "k8v4": I8}[dtype]


def element_bytes(dtype: KVType) -> int:
    """Bytes of a cached key."""
    return element(dtype).bits // 8


def paired(dtype: KVType) -> int:
    """Numbers that lie together, of one key or of adjacent positions: 2 of bfloat16 and of integers."""
    return 1 if dtype in {"f16", "f32"} else 2


def load_elements(k: Kernel, isa: Isa, dtype: KVType, lanes: int, at: Value) -> Value:
    """``lanes`` cached values of f16 or f32 as float32."""
    loaded = k.load(element(dtype).of(lanes), at)
    return isa.widen(k, loaded) if dtype == "f16" else loaded


def to_element(k: Kernel, isa: Isa, dtype: KVType, x: Value) -> Value:
    """float32 in the type of cached values. Halves are clamped to finite values: a hidden key must stay a number."""
    if dtype == "f32":
        return x
    limit = k.splat(x.type, F16_MAX if dtype == "f16" else BF16_MAX)
    finite = k.fmax(k.fmin(x, limit), -limit)
    if dtype == "f16":
        return isa.narrow(k, finite)
    return (bfloat16_bits(without_small(k, finite)) >> 16).to(I16.of(x.type.lanes))


def without_small(k: Kernel, x: Value) -> Value:
    """x, or 0 below ``BF16_LEAST``."""
    return k.select(k.abs(x) < BF16_LEAST, k.splat(x.type, 0.0), x)


def table_of(k: Kernel, group: Value, sequence: Value) -> Value:
    """The address of a sequence's block table in a KV group."""
    at = group * step_count(k, StepFields.GROUP_STRIDE) + sequence * step_count(k, StepFields.TABLE_STRIDE)
    return step_pointer(k, StepFields.TABLES) + at * 4


def block_of(k: Kernel, table: Value, position: Value, block_size: Value) -> Value:
    """The block of a position, from its sequence's table."""
    return k.load(I32, table + position // block_size * 4).to(I64)


@dataclass(frozen=True, slots=True)
class RotateSpec:
    """What is done with a head after the projection: norm or not, rotation of ``rope_dims`` values, the target.

    For integers heads are spread, after each value is multiplied by its factor, if there are ``factors``.
    """

    head_dim: int
    rope_dims: int
    pairs: RopePairs
    norm: bool
    target: Literal["row", "keys"]
    dtype: KVType
    factors: bool = False

    @property
    def name(self) -> str:
        norm, factors = "norm_" if self.norm else "", "_factors" if self.factors else ""
        return f"{norm}rotate_{self.pairs}_{self.rope_dims}of{self.head_dim}_to_{self.target}_{self.dtype}{factors}"

    @property
    def lanes(self) -> int:
        """Values of a vector: a divisor of the head, and of the values that are rotated alike."""
        half = self.rope_dims // 2 if self.pairs == "halves" else self.rope_dims
        return gcd(gcd(16, half), self.head_dim)


def rotate_kernel(spec: RotateSpec, isa: Isa) -> Kernel:
    """Units are rows. ``table`` is float32 [positions][2][rope_dims / 2]: cosines, then sines; ``factors`` is float32
    [heads][head_dim]."""
    with kernel(spec.name, CACHE_FIELDS, CACHE_POINTERS) as (k, a, units):
        for row in units:
            position = k.load(I32, step_pointer(k, StepFields.POSITIONS) + row * 4).to(I64)
            angles = a["table"] + position * (spec.rope_dims * 4)
            for head in k.range(0, a["heads"]):
                x = a["x"] + row * a["x_stride"] + head * (4 * spec.head_dim)
                factor = _norm_factor(k, spec, a, x)
                values = _rotated(k, spec, x, angles, factor, a["weight"])
                if spec.factors:
                    at = a["factors"] + head * (4 * spec.head_dim)
                    values = [v * k.load(v.type, at + 4 * spec.lanes * i) for i, v in enumerate(values)]
                if spec.dtype in INTEGER_TYPES:
                    values = spread(k, finite(k, values))
                _place(k, spec, isa, a, row, head, position, values)
    return k


def _norm_factor(k: Kernel, spec: RotateSpec, a: KernelArguments, x: Value) -> Value | None:
    if not spec.norm:
        return None
    width = k.lift(spec.head_dim, I64)
    return k.splat(F32.of(spec.lanes), reciprocal_rms(k, x, width, float_bits(a["eps"])))


def _rotated(k: Kernel, spec: RotateSpec, x: Value, angles: Value, factor: Value | None, weight: Value) -> list[Value]:
    """All values of a head as vectors of ``spec.lanes``; all are read before any is written."""
    kind = F32.of(spec.lanes)

    def load(at: int) -> Value:
        v = k.load(kind, x + 4 * at)
        return v if factor is None else v * factor * k.load(kind, weight + 4 * at)

    plain = [load(at) for at in range(0, spec.head_dim, spec.lanes)]
    turned = spec.rope_dims // spec.lanes
    if spec.pairs == "halves":
        return _turn_halves(k, spec, plain[:turned], angles) + plain[turned:]
    return _turn_adjacent(k, spec, plain[:turned], angles) + plain[turned:]


def _turn_halves(k: Kernel, spec: RotateSpec, values: list[Value], angles: Value) -> list[Value]:
    """x[i], x[i + dims/2] → x[i]·cos − x[i + dims/2]·sin, x[i + dims/2]·cos + x[i]·sin."""
    half = len(values) // 2
    kind = F32.of(spec.lanes)
    low, high = [], []
    for i in range(half):
        cos = k.load(kind, angles + 4 * spec.lanes * i)
        sin = k.load(kind, angles + 4 * (spec.rope_dims // 2 + spec.lanes * i))
        x, y = values[i], values[i + half]
        low.append(k.fma(x, cos, -(y * sin)))
        high.append(k.fma(y, cos, x * sin))
    return low + high


def _turn_adjacent(k: Kernel, spec: RotateSpec, values: list[Value], angles: Value) -> list[Value]:
    """x[2i], x[2i+1] → x[2i]·cos − x[2i+1]·sin, x[2i+1]·cos + x[2i]·sin."""
    lanes = spec.lanes
    half_kind = F32.of(lanes // 2)
    doubled = [i // 2 for i in range(lanes)]
    swapped = [i ^ 1 for i in range(lanes)]
    signs = k.constants(F32.of(lanes), [-1.0, 1.0] * (lanes // 2))
    turned = []
    for i, v in enumerate(values):
        at = 2 * lanes * i
        cos = k.shuffle(k.load(half_kind, angles + at), doubled)
        sin = k.shuffle(k.load(half_kind, angles + at + 2 * spec.rope_dims), doubled)
        turned.append(k.fma(v, cos, k.shuffle(v, swapped) * sin * signs))
    return turned


def _place(
    k: Kernel,
    spec: RotateSpec,
    isa: Isa,
    a: KernelArguments,
    row: Value,
    head: Value,
    position: Value,
    values: list[Value],
) -> None:
    if spec.target == "row":
        out = a["out"] + row * a["out_stride"] + head * (4 * spec.head_dim)
        for i, v in enumerate(values):
            k.store(v, out + 4 * spec.lanes * i)
        return
    tile, offset = _tile_of(k, a, row, head, position, tile_bytes(spec.head_dim, spec.dtype))
    pair = paired(spec.dtype)
    if spec.dtype in INTEGER_TYPES:
        codes = code_8(k, values)
        k.store(codes.scale, tile + TILE * spec.head_dim + offset * 2)
        stored, size = codes.vectors, 1
    else:
        stored, size = [to_element(k, isa, spec.dtype, v) for v in values], element_bytes(spec.dtype)
    slot = tile + offset * (pair * size)
    for i, v in enumerate(stored):
        for lane in range(spec.lanes):
            group, member = divmod(spec.lanes * i + lane, pair)
            k.store(k.extract(v, lane), slot + (group * TILE * pair + member) * size)


def _tile_of(
    k: Kernel, a: KernelArguments, row: Value, head: Value, position: Value, sizes: tuple[int, int]
) -> tuple[Value, Value]:
    """The tile of a row's position, whose keys and values have ``sizes``; the place in it."""
    sequence = k.load(I32, step_pointer(k, StepFields.ROW_SEQUENCE) + row * 4).to(I64)
    block = block_of(k, table_of(k, a["group"], sequence), position, a["block_size"])
    offset = position % a["block_size"]
    tile = block * a["block_bytes"] + head * a["head_bytes"] + offset // TILE * sum(sizes)
    return a["cache"] + tile, offset % TILE


def store_values_kernel(head_dim: int, dtype: KVType, isa: Isa) -> Kernel:
    """Writes the value rows into their blocks. Units are rows."""
    with kernel(f"store_values_{head_dim}_{dtype}", CACHE_FIELDS, CACHE_POINTERS) as (k, a, units):
        lanes, sizes = gcd(16, head_dim), tile_bytes(head_dim, dtype)
        for row in units:
            position = k.load(I32, step_pointer(k, StepFields.POSITIONS) + row * 4).to(I64)
            for head in k.range(0, a["heads"]):
                x = a["x"] + row * a["x_stride"] + head * (4 * head_dim)
                tile, offset = _tile_of(k, a, row, head, position, sizes)
                values = [k.load(F32.of(lanes), x + 4 * at) for at in range(0, head_dim, lanes)]
                at = tile + sizes[0]
                if dtype == "q8":
                    codes = code_8(k, spread(k, finite(k, values)))
                    _store_pairs(k, codes.vectors, at, offset, head_dim, 2, 1)
                    k.store(codes.scale, at + TILE * head_dim + offset * 2)
                elif dtype == "k8v4":
                    _store_v4(k, code_v4(k, spread(k, finite(k, values))), at, offset, head_dim)
                else:
                    stored = [to_element(k, isa, dtype, v) for v in values]
                    _store_pairs(k, stored, at, offset, head_dim, paired(dtype), element_bytes(dtype))
    return k


def _store_pairs(
    k: Kernel, vectors: list[Value], at: Value, offset: Value, head_dim: int, pair: int, size: int
) -> None:
    """Stores one position's values of ``size`` bytes, ``pair`` positions together."""
    slot = at + offset // pair * (pair * head_dim * size) + offset % pair * size
    for i, v in enumerate(vectors):
        if pair == 1:
            k.store(v, slot + i * v.type.lanes * size)
            continue
        for lane in range(v.type.lanes):
            k.store(k.extract(v, lane), slot + (i * v.type.lanes + lane) * (pair * size))


def _store_v4(k: Kernel, codes: Codes, at: Value, offset: Value, head_dim: int) -> None:
    """Stores one position's codes of 4 bits. Each byte belongs to one position, so rows are stored in any order."""
    groups, pair, member = head_dim // VALUE_GROUP, offset // 2, offset % 2
    slot = at + pair * head_dim + member
    numbers = at + TILE // 2 * head_dim + pair * (4 * groups) + member * 2
    for group, (scale, minimum) in enumerate(codes.groups):
        low, high = codes.vectors[2 * group : 2 * group + 2]
        both = low | (high << 4)
        for lane in range(TILE):
            k.store(k.extract(both, lane), slot + group * VALUE_GROUP + 2 * lane)
        k.store(scale, numbers + 4 * group)
        k.store(minimum, numbers + (4 * group + 1))
    k.store(codes.scale, at + (TILE // 2 * head_dim + TILE * 2 * groups) + offset * 2)
