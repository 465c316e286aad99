"""The values of every tensor format, in plain NumPy. Blocks are laid out as the public GGML headers describe.

A decoder takes blocks, uint8 [n, block_bytes], and returns float32 [n, block_values].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.values import IQ4_NL_VALUES, QuantFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def dequantize(data: Bytes, fmt: QuantFormat, columns: int) -> Floats:
    """Rows of ``columns`` values from the raw bytes of whole rows: float32 [rows, columns]."""
    blocks = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1, fmt.block_bytes)
    return _DECODERS[fmt.name](blocks).reshape(-1, columns)


def half(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte ``at`` of each block: float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """Low nibbles, then high nibbles: [n, 2 · bytes]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """32 bits, lowest first, as the fifth bit (16) of 32 codes."""
    return np.left_shift(np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little"), 4, dtype=np.uint8)


def six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 scales and 8 mins of 6 bits that Q4_K and Q5_K pack into 12 bytes: each [n, 8]."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, mins


def planes(packed: Bytes, width: int, bits: int, groups: int) -> Bytes:
    """Bit fields stored plane after plane: each run of ``width`` bytes holds ``groups`` runs of ``width`` codes."""
    runs = packed.reshape(len(packed), -1, 1, width)
    shifts = (np.arange(groups, dtype=np.uint8) * bits)[:, None]
    codes = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(packed), -1)


def _affine(codes: NDArray[np.integer], scale: Floats, offset: Floats) -> Floats:
    """codes · scale + offset, with a scale and an offset for each of the equal groups of a block."""
    grouped = codes.astype(np.float32).reshape(len(codes), scale.shape[1], -1)
    return (grouped * scale[:, :, None] + offset[:, :, None]).reshape(len(codes), -1)


def _q2_k(b: Bytes) -> Floats:
    scales = b[:, :16]
    codes = planes(b[:, 16:80], width=32, bits=2, groups=4)
    return _affine(codes, half(b, 80) * (scales & 15), -half(b, 82) * (scales >> 4))


def _q3_k(b: Bytes) -> Floats:
    low = planes(b[:, 32:96], width=32, bits=2, groups=4)
    high = planes(b[:, :32], width=32, bits=1, groups=8)
    scales = half(b, 108) * (q3_k_scales(b[:, 96:108]).astype(np.float32) - 32)
    return _affine((low | high << 2).astype(np.int8) - 4, scales, np.zeros_like(scales))


def q3_k_scales(packed: Bytes) -> Bytes:
    """16 scales of 6 bits, biased by 32: low nibbles in 8 bytes, upper two bits in 4: [n, 16]."""
    upper = planes(packed[:, 8:], width=4, bits=2, groups=4)
    return nibbles(packed[:, :8]) | np.left_shift(upper, 4, dtype=np.uint8)


def _q4_k(b: Bytes) -> Floats:
    scales, mins = six_bit_pairs(b[:, 4:16])
    codes = planes(b[:, 16:], width=32, bits=4, groups=2)
    return _affine(codes, half(b, 0) * scales, -half(b, 2) * mins)


def _q5_k(b: Bytes) -> Floats:
    scales, mins = six_bit_pairs(b[:, 4:16])
    codes = planes(b[:, 48:], width=32, bits=4, groups=2) | planes(b[:, 16:48], width=32, bits=1, groups=8) << 4
    return _affine(codes, half(b, 0) * scales, -half(b, 2) * mins)


def _q6_k(b: Bytes) -> Floats:
    low = planes(b[:, :128], width=64, bits=4, groups=2)
    high = planes(b[:, 128:192], width=32, bits=2, groups=4)
    scales = half(b, 208) * b[:, 192:208].view(np.int8)
    return _affine((low | high << 4).astype(np.int8) - 32, scales, np.zeros_like(scales))


_DECODERS: Final[Mapping[str, Callable[[Bytes], Floats]]] = {
    "F32": lambda b: b.view("<f4").astype(np.float32),
    "F16": lambda b: b.view("<f2").astype(np.float32),
    "BF16": lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32),
    "Q4_0": lambda b: (nibbles(b[:, 2:]).astype(np.float32) - 8) * half(b, 0),
    "Q4_1": lambda b: nibbles(b[:, 4:]) * half(b, 0) + half(b, 2),
    "Q5_0": lambda b: ((nibbles(b[:, 6:]) | fifth_bits(b, 2)).astype(np.float32) - 16) * half(b, 0),
    "Q5_1": lambda b: (nibbles(b[:, 8:]) | fifth_bits(b, 4)) * half(b, 0) + half(b, 2),
    "Q8_0": lambda b: b[:, 2:].view(np.int8) * half(b, 0),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": lambda b: np.asarray(IQ4_NL_VALUES, np.float32)[nibbles(b[:, 2:])] * half(b, 0),
}
