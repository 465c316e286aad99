"""Reads the blocks of GGUF rows in a kernel: codes, four at a time, and their scales and minima.

Codes are i32 words of four unsigned bytes, the k-quads of ``layout``; shifts apply to the four bytes together. The
block layouts are those of the public GGML headers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from twofold.backends.cpu.kernels.ir import I8, I32, Kernel, Value

LOW4, LOW2, LOW1 = 0x0F0F0F0F, 0x03030303, 0x01010101


@dataclass(frozen=True, slots=True)
class RawFormat:
    """The layout of a block in the file.

    quads(k, block, chunk)    the eight words of codes of a chunk of 32 (``chunk`` is known at generation time)
    half_scale, half_minimum  byte offsets of the block's float16 scale and minimum
    small(k, block, group)    for super-blocks: integer scale and minimum (or None) of a group, as i8
    """

    quads: Callable[[Kernel, Value, int], list[Value]]
    half_scale: int
    half_minimum: int | None = None
    small: Callable[[Kernel, Value, int], tuple[Value, Value | None]] | None = None


def _word(k: Kernel, block: Value, offset: int) -> Value:
    return k.load(I32, block + offset)


def _nibbles(k: Kernel, block: Value, at: int) -> list[Value]:
    """16 bytes: low halves are values 0 … 15, high halves 16 … 31."""
    words = [_word(k, block, at + 4 * i) for i in range(4)]
    return [w & LOW4 for w in words] + [(w >> 4) & LOW4 for w in words]


def _with_high_bits(k: Kernel, block: Value, at: int, bits_at: int) -> list[Value]:
    """Nibbles at ``at`` with a fifth bit each from the 32-bit mask at ``bits_at``.

    The product of four bits and 1 + 2^7 + 2^14 + 2^21 has them at bits 0, 8, 16 and 24.
    """
    mask = _word(k, block, bits_at)
    quads = []
    for quad, nibble in enumerate(_nibbles(k, block, at)):
        spread = (((mask >> 4 * quad) & 15) * 0x00204081) & LOW1
        quads.append(nibble | spread << 4)
    return quads


def _bytes(k: Kernel, block: Value, _chunk: int) -> list[Value]:
    """32 signed bytes, made unsigned: flipping the sign bit adds 128."""
    return [_word(k, block, 2 + 4 * quad) ^ -0x7F7F7F80 for quad in range(8)]


def _half_bytes(k: Kernel, block: Value, at: int, chunk: int) -> list[Value]:
    """Super-block nibbles: 32 bytes hold two chunks, the even one in the low halves."""
    words = [_word(k, block, at + 32 * (chunk // 2) + 4 * quad) for quad in range(8)]
    return [(w >> 4 if chunk % 2 else w) & LOW4 for w in words]


def _q2_k(k: Kernel, block: Value, chunk: int) -> list[Value]:
    return _crumbs(k, block, 16, chunk)


def _crumbs(k: Kernel, block: Value, at: int, chunk: int) -> list[Value]:
    """32 bytes hold four chunks, two bits each."""
    return [(_word(k, block, at + 32 * (chunk // 4) + 4 * q) >> 2 * (chunk % 4)) & LOW2 for q in range(8)]


def _q3_k(k: Kernel, block: Value, chunk: int) -> list[Value]:
    high = [((_word(k, block, 4 * q) >> chunk) & LOW1) << 2 for q in range(8)]
    return [low | bit for low, bit in zip(_crumbs(k, block, 32, chunk), high, strict=True)]


def _q4_k(k: Kernel, block: Value, chunk: int) -> list[Value]:
    return _half_bytes(k, block, 16, chunk)


def _q5_k(k: Kernel, block: Value, chunk: int) -> list[Value]:
    high = [((_word(k, block, 16 + 4 * q) >> chunk) & LOW1) << 4 for q in range(8)]
    return [low | bit for low, bit in zip(_half_bytes(k, block, 48, chunk), high, strict=True)]


def _q6_k(k: Kernel, block: Value, chunk: int) -> list[Value]:
    half, part = divmod(chunk, 4)
    quads = []
    for q in range(8):
        low = _word(k, block, 64 * half + 32 * (part % 2) + 4 * q) >> 4 * (part // 2)
        high = _word(k, block, 128 + 32 * half + 4 * q) >> 2 * part
        quads.append((low & LOW4) | (high & LOW2) << 4)
    return quads


def _byte(k: Kernel, block: Value, offset: int) -> Value:
    return k.load(I8, block + offset)


def _small_q2_k(k: Kernel, block: Value, group: int) -> tuple[Value, Value | None]:
    return _byte(k, block, group), None


def _small_q3_k(k: Kernel, block: Value, group: int) -> tuple[Value, Value | None]:
    """12 bytes hold sixteen 6-bit scales plus 32: four low bits in bytes 0–7, two high bits in bytes 8–11."""
    low = _byte(k, block, 96 + group % 8)
    low = low >> 4 if group >= 8 else low & 15
    high = (_byte(k, block, 104 + group % 4) >> 2 * (group // 4)) & 3
    return (low | high << 4) - 32, None


def _small_k_min(k: Kernel, block: Value, group: int) -> tuple[Value, Value | None]:
    """12 bytes hold eight 6-bit scales and minima; groups 4–7 have bits in the top bits of groups 0–3."""
    at = 4
    if group < 4:
        return _byte(k, block, at + group) & 63, _byte(k, block, at + group + 4) & 63
    shared = _byte(k, block, at + group + 4)
    scale = (shared & 15) | (_byte(k, block, at + group - 4) >> 6) << 4
    minimum = (shared >> 4) | (_byte(k, block, at + group) >> 6) << 4
    return scale, minimum


def _small_q6_k(k: Kernel, block: Value, group: int) -> tuple[Value, Value | None]:
    return _byte(k, block, 192 + group), None


RAW: Final[dict[str, RawFormat]] = {
    "Q4_0": RawFormat(lambda k, b, _: _nibbles(k, b, 2), 0),
    "Q4_1": RawFormat(lambda k, b, _: _nibbles(k, b, 4), 0, 2),
    "Q5_0": RawFormat(lambda k, b, _: _with_high_bits(k, b, 6, 2), 0),
    "Q5_1": RawFormat(lambda k, b, _: _with_high_bits(k, b, 8, 4), 0, 2),
    "Q8_0": RawFormat(_bytes, 0),
    "IQ4_NL": RawFormat(lambda k, b, _: _nibbles(k, b, 2), 0),
    "Q2_K": RawFormat(_q2_k, 80, 82, _small_q2_k),
    "Q3_K": RawFormat(_q3_k, 108, None, _small_q3_k),
    "Q4_K": RawFormat(_q4_k, 0, 2, _small_k_min),
    "Q5_K": RawFormat(_q5_k, 0, 2, _small_k_min),
    "Q6_K": RawFormat(_q6_k, 208, None, _small_q6_k),
}
