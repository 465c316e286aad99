"""The paged KV cache: its layout in memory, and the kernels that write it.

One layer's cache is an array of blocks of ``block_size`` positions (a multiple of 16). In a block each KV head has its
keys, then its values, in tiles of 16 positions:

    keys      [tile][head_dim][16 positions]     lanes are positions, so a score needs no horizontal sum
    values    [tile][16 positions][head_dim]     lanes are head values, so an output needs none either

Elements are float16 or float32, or bfloat16 in pairs, as dot products of pairs take them:

    keys      [tile][head_dim / 2][16 positions][2]
    values    [tile][8 positions][head_dim][2]

A pair is two numbers of one key, or the same number of two positions. Keys are stored after their norm and rotation.
The step's block tables map positions to blocks: one table for each sequence and each KV group, which is the layers with
the same attention window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final, Literal

from twofold.backends.cpu.kernels.ir import F16, F32, I16, I32, I64, Kernel, Type, Value
from twofold.backends.cpu.kernels.isa import Isa, bfloat16_bits
from twofold.backends.cpu.kernels.rows import float_bits, reciprocal_rms
from twofold.backends.cpu.kernels.signature import KernelArguments, StepFields, kernel, step_count, step_pointer
from twofold.core.kv_layout import KV_FORMATS, KVType, key_value_bytes
from twofold.core.model import RopePairs

TILE: Final = 16
F16_MAX: Final = 65504.0
BF16_MAX: Final = (2 - 2**-7) * 2.0**127
BF16_LEAST: Final = 2.0**-50
"""Smaller numbers become 0 in bfloat16. Products and their sums are then multiples of 2⁻¹¹⁴, and none is subnormal
(below 2⁻¹²⁶), which processors treat differently."""

CACHE_FIELDS: Final = (
    "x", "x_stride", "cache", "group", "block_bytes", "head_bytes", "block_size", "heads", "weight", "eps", "table",
    "out", "out_stride",
)  # fmt: skip
CACHE_POINTERS: Final = frozenset({"x", "cache", "weight", "table", "out"})


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


def element(dtype: KVType) -> Type:
    """The type of a cached value; I16 for the bits of a bfloat16."""
    return {"bf16": I16, "f16": F16, "f32": F32}[dtype]


def element_bytes(dtype: KVType) -> int:
    """Bytes of a cached value."""
    return element(dtype).bits // 8


def paired(dtype: KVType) -> int:
    """Numbers that lie together, of one key or of adjacent positions: 2 of bfloat16."""
    return 2 if dtype == "bf16" else 1


def load_elements(k: Kernel, isa: Isa, dtype: Literal["f16", "f32"], lanes: int, at: Value) -> Value:
    """``lanes`` cached values as float32."""
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
    """What is done with a head after the projection: norm or not, rotation of ``rope_dims`` values, the target."""

    head_dim: int
    rope_dims: int
    pairs: RopePairs
    norm: bool
    target: Literal["row", "keys"]
    dtype: KVType

    @property
    def name(self) -> str:
        norm = "norm_" if self.norm else ""
        return f"{norm}rotate_{self.pairs}_{self.rope_dims}of{self.head_dim}_to_{self.target}_{self.dtype}"

    @property
    def lanes(self) -> int:
        """Values of a vector: a divisor of the head, and of the values that are rotated alike."""
        half = self.rope_dims // 2 if self.pairs == "halves" else self.rope_dims
        return gcd(gcd(16, half), self.head_dim)


def rotate_kernel(spec: RotateSpec, isa: Isa) -> Kernel:
    """Units are rows. ``table`` is float32 [positions][2][rope_dims / 2]: cosines, then sines."""
    with kernel(spec.name, CACHE_FIELDS, CACHE_POINTERS) as (k, a, units):
        for row in units:
            position = k.load(I32, step_pointer(k, StepFields.POSITIONS) + row * 4).to(I64)
            angles = a["table"] + position * (spec.rope_dims * 4)
            for head in k.range(0, a["heads"]):
                x = a["x"] + row * a["x_stride"] + head * (4 * spec.head_dim)
                factor = _norm_factor(k, spec, a, x)
                values = _rotated(k, spec, x, angles, factor, a["weight"])
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
    size = element_bytes(spec.dtype)
    offset = position % a["block_size"]
    tile = a["cache"] + _head_offset(k, a, row, head, position)
    pair = paired(spec.dtype)
    slot = tile + offset // TILE * (TILE * spec.head_dim * size) + offset % TILE * (pair * size)
    for i, v in enumerate(values):
        stored = to_element(k, isa, spec.dtype, v)
        for lane in range(spec.lanes):
            group, member = divmod(spec.lanes * i + lane, pair)
            k.store(k.extract(stored, lane), slot + (group * TILE * pair + member) * size)


def _head_offset(k: Kernel, a: KernelArguments, row: Value, head: Value, position: Value) -> Value:
    sequence = k.load(I32, step_pointer(k, StepFields.ROW_SEQUENCE) + row * 4).to(I64)
    block = block_of(k, table_of(k, a["group"], sequence), position, a["block_size"])
    return block * a["block_bytes"] + head * a["head_bytes"]


def store_values_kernel(head_dim: int, dtype: KVType, isa: Isa) -> Kernel:
    """Writes the value rows into their blocks. Units are rows."""
    with kernel(f"store_values_{head_dim}_{dtype}", CACHE_FIELDS, CACHE_POINTERS) as (k, a, units):
        size, lanes, pair = element_bytes(dtype), gcd(16, head_dim), paired(dtype)
        for row in units:
            position = k.load(I32, step_pointer(k, StepFields.POSITIONS) + row * 4).to(I64)
            for head in k.range(0, a["heads"]):
                x = a["x"] + row * a["x_stride"] + head * (4 * head_dim)
                values = a["cache"] + _head_offset(k, a, row, head, position) + (a["head_bytes"] >> 1)
                offset = position % a["block_size"]
                slot = values + offset // pair * (pair * head_dim * size) + offset % pair * size
                for at in range(0, head_dim, lanes):
                    stored = to_element(k, isa, dtype, k.load(F32.of(lanes), x + 4 * at))
                    if pair == 1:
                        k.store(stored, slot + at * size)
                        continue
                    for lane in range(lanes):
                        k.store(k.extract(stored, lane), slot + (at + lane) * (pair * size))
    return k
