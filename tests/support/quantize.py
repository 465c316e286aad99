"""Simple encoders for every tensor format: valid blocks near the values they are given, not the best ones.

Each encoder takes float32 [n, block_values] and returns uint8 [n, block_bytes].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.values import IQ4_NL_VALUES, QuantFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Real = NDArray[np.floating]

_HALVES: Final[Mapping[str, tuple[int, ...]]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}
"""Where in a block its f16 scales and mins are."""


def quantize(values: NDArray[np.floating], fmt: QuantFormat) -> Bytes:
    """Raw bytes of the rows of ``values`` [rows, columns]: uint8 [rows, row_bytes]."""
    rows, columns = values.shape
    blocks = np.asarray(values, np.float32).reshape(-1, fmt.block_values)
    return _ENCODERS[fmt.name](blocks).reshape(rows, fmt.row_bytes(columns))


def random_rows(fmt: QuantFormat, rows: int, columns: int, rng: np.random.Generator) -> Bytes:
    """Random raw rows that use every code, scale and min a block can hold: uint8 [rows, row_bytes].

    The f16 fields of quantised blocks have either sign and sizes of about 0.001 to 0.1.
    """
    if fmt.is_float:
        return quantize(rng.standard_normal((rows, columns)), fmt)
    count = rows * columns // fmt.block_values
    blocks = rng.integers(0, 256, (count, fmt.block_bytes), dtype=np.uint8)
    for at in _HALVES[fmt.name]:
        sizes = rng.choice([-1.0, 1.0], (count, 1)) * 10 ** rng.uniform(-3, -1, (count, 1))
        blocks[:, at : at + 2] = _half(sizes.astype(np.float32))
    return blocks.reshape(rows, -1)


def _half(values: Floats) -> Bytes:
    """f16 bytes of one value for each block: [n, 2]."""
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _ratio(x: Real, scale: Real) -> Real:
    """x / scale, and 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros_like(x), where=np.broadcast_to(scale != 0, x.shape))


def _codes(x: Real, scale: Real, low: int, high: int) -> NDArray[np.int64]:
    return np.clip(np.rint(_ratio(x, scale)), low, high).astype(np.int64)


def _signed_peak(x: Floats) -> Floats:
    """The value of largest magnitude in each block, with its sign: [n, 1]."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)


def _f16_rounded(x: Real) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def _pack_nibbles(codes: NDArray[np.integer]) -> Bytes:
    """First half of the codes in low nibbles, second half in high ones."""
    codes = codes.astype(np.uint8)
    middle = codes.shape[1] // 2
    low, high = codes[:, :middle] & 15, codes[:, middle:] & 15
    return (low | high << 4).astype(np.uint8)


def _pack_fifth_bits(codes: NDArray[np.integer]) -> Bytes:
    return np.packbits((codes >> 4 & 1).astype(np.uint8), axis=1, bitorder="little")


def _pack_planes(codes: NDArray[np.integer], width: int, bits: int, groups: int) -> Bytes:
    """The inverse of ``dequantize.planes``: groups of ``width`` codes share ``width`` bytes."""
    runs = codes.astype(np.uint8).reshape(len(codes), -1, groups, width) & ((1 << bits) - 1)
    shifts = (np.arange(groups, dtype=np.uint8) * bits)[:, None]
    packed: Bytes = np.bitwise_or.reduce(runs << shifts, axis=2).astype(np.uint8)
    return packed.reshape(len(codes), -1)


def _symmetric(x: Floats, levels: int) -> tuple[Floats, NDArray[np.int64]]:
    """Scale such that the largest value becomes -levels, and codes 0 … 2 · levels - 1."""
    scale = _f16_rounded(_signed_peak(x) / -levels)
    return scale, _codes(x, scale, -levels, levels - 1) + levels


def _ranged(x: Floats, top: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Scale, minimum and codes 0 … top."""
    low = _f16_rounded(x.min(axis=1, keepdims=True))
    scale = _f16_rounded((x.max(axis=1, keepdims=True) - low) / top)
    return scale, low, _codes(x - low, scale, 0, top)


def _q4_0(x: Floats) -> Bytes:
    scale, codes = _symmetric(x, 8)
    return np.hstack([_half(scale), _pack_nibbles(codes)])


def _q4_1(x: Floats) -> Bytes:
    scale, low, codes = _ranged(x, 15)
    return np.hstack([_half(scale), _half(low), _pack_nibbles(codes)])


def _q5_0(x: Floats) -> Bytes:
    scale, codes = _symmetric(x, 16)
    return np.hstack([_half(scale), _pack_fifth_bits(codes), _pack_nibbles(codes)])


def _q5_1(x: Floats) -> Bytes:
    scale, low, codes = _ranged(x, 31)
    return np.hstack([_half(scale), _half(low), _pack_fifth_bits(codes), _pack_nibbles(codes)])


def _q8_0(x: Floats) -> Bytes:
    scale = _f16_rounded(np.abs(x).max(axis=1, keepdims=True) / 127)
    return np.hstack([_half(scale), _codes(x, scale, -127, 127).astype(np.int8).view(np.uint8)])


def _iq4_nl(x: Floats) -> Bytes:
    scale = _f16_rounded(_signed_peak(x) / IQ4_NL_VALUES[0])
    distance = np.abs(_ratio(x, scale)[:, :, None] - np.asarray(IQ4_NL_VALUES, np.float32))
    return np.hstack([_half(scale), _pack_nibbles(distance.argmin(axis=2))])


def _two_level(x: Floats, group: int, code_top: int, scale_top: int) -> tuple[Floats, Floats, Bytes, Bytes, Bytes]:
    """Blocks of groups with a small scale and min each: d, dmin [n, 1]; scales, mins [n, groups]; codes [n, values]."""
    grouped = x.reshape(len(x), -1, group)
    drop = np.maximum(0, -grouped.min(axis=2))
    step = (np.maximum(0, grouped.max(axis=2)) + drop) / code_top
    d, dmin = (_f16_rounded(v.max(axis=1, keepdims=True) / scale_top) for v in (step, drop))
    scales, mins = _codes(step, d, 0, scale_top), _codes(drop, dmin, 0, scale_top)
    codes = _codes(grouped + (dmin * mins)[:, :, None], (d * scales).astype(np.float32)[:, :, None], 0, code_top)
    return d, dmin, scales.astype(np.uint8), mins.astype(np.uint8), codes.reshape(x.shape).astype(np.uint8)


def _two_level_signed(x: Floats, levels: int, scale_top: int) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """16 groups with a small scale each: d [n, 1]; scales [n, 16]; codes 0 … 2 · levels - 1 [n, values]."""
    grouped = x.reshape(len(x), 16, -1)
    peaks = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    step = peaks / -levels
    d = _f16_rounded(np.abs(step).max(axis=1, keepdims=True) / scale_top)
    scales = _codes(step, d, -scale_top, scale_top)
    codes = _codes(grouped, (d * scales).astype(np.float32)[:, :, None], -levels, levels - 1) + levels
    return d, scales, codes.reshape(x.shape)


def _pack_six_bit_pairs(scales: Bytes, mins: Bytes) -> Bytes:
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = mins[:, :4] | mins[:, 4:] >> 4 << 6
    return np.hstack([first, second, scales[:, 4:] & 15 | mins[:, 4:] << 4])


def _q2_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, codes = _two_level(x, 16, code_top=3, scale_top=15)
    packed = _pack_planes(codes, width=32, bits=2, groups=4)
    return np.hstack([scales | mins << 4, packed, _half(d), _half(dmin)])


def _q3_k(x: Floats) -> Bytes:
    d, signed, codes = _two_level_signed(x, levels=4, scale_top=31)
    scales = signed + 32
    packed_scales = np.hstack([_pack_nibbles(scales & 15), _pack_planes(scales >> 4, width=4, bits=2, groups=4)])
    high = _pack_planes(codes >> 2, width=32, bits=1, groups=8)
    return np.hstack([high, _pack_planes(codes & 3, width=32, bits=2, groups=4), packed_scales, _half(d)])


def _q4_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, codes = _two_level(x, 32, code_top=15, scale_top=63)
    packed = _pack_planes(codes, width=32, bits=4, groups=2)
    return np.hstack([_half(d), _half(dmin), _pack_six_bit_pairs(scales, mins), packed])


def _q5_k(x: Floats) -> Bytes:
    d, dmin, scales, mins, codes = _two_level(x, 32, code_top=31, scale_top=63)
    high = _pack_planes(codes >> 4, width=32, bits=1, groups=8)
    packed = _pack_planes(codes & 15, width=32, bits=4, groups=2)
    return np.hstack([_half(d), _half(dmin), _pack_six_bit_pairs(scales, mins), high, packed])


def _q6_k(x: Floats) -> Bytes:
    d, scales, codes = _two_level_signed(x, levels=32, scale_top=127)
    low = _pack_planes(codes & 15, width=64, bits=4, groups=2)
    high = _pack_planes(codes >> 4, width=32, bits=2, groups=4)
    return np.hstack([low, high, scales.astype(np.int8).view(np.uint8), _half(d)])


def _f32(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, "<f4").view(np.uint8)


def _f16(x: Floats) -> Bytes:
    return x.astype("<f2").view(np.uint8)


def _bf16(x: Floats) -> Bytes:
    bits = np.ascontiguousarray(x).view(np.uint32)
    even = bits + 0x7FFF + (bits >> 16 & 1)
    return (even >> 16).astype("<u2").view(np.uint8)


_ENCODERS: Final[Mapping[str, Callable[[Floats], Bytes]]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
}
