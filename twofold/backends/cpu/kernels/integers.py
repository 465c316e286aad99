"""Keys and values as integers: how one position's head becomes codes. ``backends.kv_codes`` is the same in NumPy.

A head is first spread: a Walsh–Hadamard transform makes each value a sum of all of them with signs, so that a single
large one no longer sets the scale of the others. It runs over blocks of the largest power of two that divides the head:

    for h = 1, 2, 4, … below the block:   x[i], x[i + h]  ←  x[i] + x[i + h], x[i] − x[i + h]

The transform applied twice multiplies by the block's size, a power of two, so products of spread queries and keys are
divided by it exactly, and outputs are spread once more and divided. Codes of the spread values y:

    8 bits    scale = bf16(max |y| / 127);  code = round(y / scale)
    4 bits    scale = bf16(max |y| / 508);  in each group of 32, with t = y / scale:
              minimum = round(min t / 4);  step = round((max t − 4 · minimum) / 15 + ½)
              code = round((t − 4 · minimum) / step), from 0 to 15;   y ≈ scale · (step · code + 4 · minimum)

Divisions are multiplications by the float32 reciprocal, rounding is to nearest even, and all is 0 for max |y| ≤ 1e-30.
A position's codes depend on that position alone, so the cache does not depend on how a prompt was cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

from twofold.backends.cpu.kernels.ir import F32, I8, I16, I32, I32X16, Kernel, Value
from twofold.backends.cpu.kernels.isa import bfloat16_bits
from twofold.backends.cpu.kernels.rows import NEGLIGIBLE
from twofold.core.kv_layout import MINIMUM_UNIT, VALUE_GROUP, VALUE_RANGE, spread_block

LARGEST: Final = 2.0**100
MAGIC: Final = 1.5 * 2.0**23


@dataclass(frozen=True, slots=True)
class Codes:
    """One head of one position: bytes as vectors, the scale's bits, and each group's step and minimum (int8)."""

    vectors: list[Value]
    scale: Value
    groups: tuple[tuple[Value, Value], ...] = ()


def spread(k: Kernel, vectors: list[Value]) -> list[Value]:
    """The transform of a head, which is given and returned as vectors of equal size."""
    lanes = vectors[0].type.lanes
    block = spread_block(lanes * len(vectors))
    h = 1
    while h < min(lanes, block):
        signs = k.constants(vectors[0].type, [-1.0 if i & h else 1.0 for i in range(lanes)])
        swapped = [i ^ h for i in range(lanes)]
        vectors = [k.fma(v, signs, k.shuffle(v, swapped)) for v in vectors]
        h *= 2
    while h < block:
        step = h // lanes
        vectors = [vectors[i - step] - v if i & step else v + vectors[i + step] for i, v in enumerate(vectors)]
        h *= 2
    return vectors


def finite(k: Kernel, vectors: list[Value]) -> list[Value]:
    """Numbers whose spread ones are finite: infinite ones and those that are no numbers become large."""
    limit = k.splat(vectors[0].type, LARGEST)
    return [k.fmax(k.fmin(v, limit), -limit) for v in vectors]


def spread_back(k: Kernel, vectors: list[Value]) -> list[Value]:
    """Undoes ``spread``."""
    block = spread_block(vectors[0].type.lanes * len(vectors))
    return [v * (1 / block) for v in spread(k, vectors)]


def code_8(k: Kernel, values: list[Value]) -> Codes:
    """A spread head in 8 bits."""
    scaled, scale = _scaled(k, values, 127)
    return Codes([k.round_even(v).to(I32.of(v.type.lanes)).to(I8.of(v.type.lanes)) for v in scaled], scale)


def code_v4(k: Kernel, values: list[Value]) -> Codes:
    """A spread head in 4 bits, given as vectors of 16."""
    scaled, scale = _scaled(k, values, VALUE_RANGE)
    vectors, groups = [], []
    for first in range(0, len(scaled), VALUE_GROUP // 16):
        group = scaled[first : first + VALUE_GROUP // 16]
        low = -k.reduce_tree(reduce(k.fmax, [-v for v in group]), "fmax")
        high = k.reduce_tree(reduce(k.fmax, group), "fmax")
        minimum = _rounded(low * (1 / MINIMUM_UNIT))
        lowest = minimum * MINIMUM_UNIT
        step = _rounded((high - lowest) * (1 / 15) + 0.5)
        inverse = k.select(step > 0.0, k.splat(F32, 1.0) / step, k.splat(F32, 0.0))
        for v in group:
            code = k.round_even((v - k.splat(v.type, lowest)) * k.splat(v.type, inverse)).to(I32X16)
            vectors.append(k.smin(k.smax(code, 0), 15).to(I8.of(16)))
        groups.append((step.to(I32).to(I8), minimum.to(I32).to(I8)))
    return Codes(vectors, scale, tuple(groups))


def _scaled(k: Kernel, values: list[Value], most: int) -> tuple[list[Value], Value]:
    """Values over their scale, which makes them ``most`` at most; the scale's bits."""
    amax = reduce(k.fmax, map(k.abs, values))
    amax = k.reduce_tree(amax, "fmax") if amax.type.lanes > 1 else amax
    seen = amax > NEGLIGIBLE
    bits = k.select(seen, bfloat16_bits(amax * (1 / most)), k.splat(I32, 0))
    inverse = k.select(seen, k.splat(F32, 1.0) / bits.as_bits(F32), k.splat(F32, 0.0))
    return [v * k.splat(v.type, inverse) for v in values], (bits >> 16).to(I16)


def _rounded(x: Value) -> Value:
    """A scalar below 2²² to the nearest integer, to even."""
    return (x + MAGIC) - MAGIC


def widened_scales(bits: Value) -> Value:
    """16 scales as float32."""
    return (bits.to(I32X16, unsigned=True) << 16).as_bits(F32.of(16))
