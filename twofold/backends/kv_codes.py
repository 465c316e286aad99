"""Keys and values as integers, in NumPy: the definition that ``backends.cpu.kernels.integers`` computes to the bit.

Arrays are float32 [..., head_dim], heads as attention reads them: keys after norm, rotation and ``key_factors``. All
operations are in float32 and rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.kv_layout import MINIMUM_UNIT, VALUE_GROUP, VALUE_RANGE, spread_block
from twofold.core.model import RopeSpec

Array = NDArray[np.float32]
LARGEST: Final = np.float32(2.0**100)
NEGLIGIBLE: Final = np.float32(1e-30)
TINY: Final = np.float32(1e-6)
"""Smaller squares, in units of their mean, count as this: a norm's weight may be 0."""


@dataclass(frozen=True, slots=True)
class HeadCodes:
    """Codes [..., head_dim] and their scale [...]; of 4 bits also step and minimum [..., groups]."""

    codes: NDArray[np.int8]
    scale: Array
    step: NDArray[np.int8] | None = None
    minimum: NDArray[np.int8] | None = None

    def decoded(self) -> Array:
        """The numbers that the codes stand for, exactly."""
        codes = self.codes.astype(np.float32)
        if self.step is not None and self.minimum is not None:
            step, minimum = (np.repeat(each, VALUE_GROUP, axis=-1) for each in (self.step, self.minimum))
            codes = step * codes + np.float32(MINIMUM_UNIT) * minimum
        decoded: Array = codes * self.scale[..., None]
        return decoded


def spread(x: Array) -> Array:
    """The Walsh–Hadamard transform of each block of a head."""
    h, block = 1, spread_block(x.shape[-1])
    while h < block:
        pairs = x.reshape(*x.shape[:-1], -1, 2, h)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([low + high, low - high], axis=-2).reshape(x.shape)
        h *= 2
    return x


def finite(x: Array) -> Array:
    """Numbers whose spread ones are finite: infinite ones and those that are no numbers become large."""
    x = np.where(x < LARGEST, x, LARGEST)
    return np.where(x > -LARGEST, x, -LARGEST)


def spread_back(x: Array) -> Array:
    """Undoes ``spread``."""
    return spread(x) * np.float32(1 / spread_block(x.shape[-1]))


def key_factors(key: Array, query: Array, rope: RopeSpec, *, norm: bool) -> Array:
    """Powers of two [kv_heads, head_dim] by which keys are divided and queries multiplied, from the biases of both, or
    with ``norm`` from the weights of their norms: [kv_heads, head_dim] and [heads, head_dim].

    A few biases of Qwen2.5's keys are up to 158, and would set the scale of all codes of a head. The error of a score
    grows with |q| · |k|, and is least where k over its factor is as large as q times it: the factor is √(|k| / |q|),
    with biases for the sizes, and 1 for the part of the matrix, or with the norms' weights. Both values of a rotated
    pair share it, so it commutes with the rotation; powers of two round nothing.
    """
    rest = 0 if norm else 1
    keys, asked = rest + key**2, rest + (query.reshape(len(key), -1, key.shape[1]) ** 2).mean(axis=1)
    halves = [slice(0, rope.dims, 2), slice(1, rope.dims, 2)]
    if rope.pairs == "halves":
        halves = [slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)]
    for each in (keys, asked):
        each[:, halves[0]] = each[:, halves[1]] = (each[:, halves[0]] + each[:, halves[1]]) / 2
    keys, asked = (np.maximum(each, TINY * each.mean(axis=1, keepdims=True)) for each in (keys, asked))
    powers = np.log2(keys / asked) / 4
    factors: Array = np.exp2(np.rint(powers - powers.mean(axis=1, keepdims=True))).astype(np.float32)
    return factors


def code_8(x: Array) -> HeadCodes:
    """A spread head in 8 bits."""
    scaled, scale = _scaled(x, 127)
    return HeadCodes(np.rint(scaled).astype(np.int8), scale)


def code_v4(x: Array) -> HeadCodes:
    """A spread head in 4 bits."""
    scaled, scale = _scaled(x, VALUE_RANGE)
    groups = scaled.reshape(*x.shape[:-1], -1, VALUE_GROUP)
    minimum = np.rint(groups.min(axis=-1) * np.float32(1 / MINIMUM_UNIT))
    lowest = minimum * np.float32(MINIMUM_UNIT)
    step = np.rint((groups.max(axis=-1) - lowest) * np.float32(1 / 15) + np.float32(0.5))
    inverse = np.where(step > 0, np.float32(1) / np.where(step > 0, step, np.float32(1)), np.float32(0))
    codes = np.clip(np.rint((groups - lowest[..., None]) * inverse[..., None]), 0, 15)
    return HeadCodes(codes.reshape(x.shape).astype(np.int8), scale, step.astype(np.int8), minimum.astype(np.int8))


def query_codes(x: Array) -> Array:
    """Spread queries as attention multiplies them: rounded to integers of 16 bits times a factor of the head."""
    amax = np.abs(x).max(axis=-1, keepdims=True)
    seen = amax > NEGLIGIBLE
    inverse = np.where(seen, np.float32(32767) / np.where(seen, amax, np.float32(1)), np.float32(0))
    factor = np.where(seen, amax * np.float32(1 / 32767), np.float32(0))
    rounded: Array = np.rint(x * inverse) * factor
    return rounded


def bfloat16(x: Array) -> Array:
    """Rounded to bfloat16: to nearest, to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return rounded


def _scaled(x: Array, most: int) -> tuple[Array, Array]:
    """Values over their scale, which makes them ``most`` at most; the scale."""
    amax = np.abs(x).max(axis=-1)
    seen = amax > NEGLIGIBLE
    scale = np.where(seen, bfloat16(amax * np.float32(1 / most)), np.float32(0))
    inverse = np.where(seen, np.float32(1) / np.where(seen, scale, np.float32(1)), np.float32(0))
    return x * inverse[..., None], scale
