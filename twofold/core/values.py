"""How numbers are stored: the formats of weights, and those of keys and values.

A format takes ``bits`` for each value, ``tile_bytes`` of scales for each tile of ``tile_rows`` × ``tile_columns``
values, and ``row_bytes`` of scales for each row. Tiles at the edges hold fewer values, but as many scales. Tiles of
GGUF's formats have one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from twofold.core.errors import ParameterError, did_you_mean


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A tensor format. Rows are stored as whole blocks of ``block_values`` values in ``block_bytes`` bytes."""

    name: str
    block_values: int
    block_bytes: int

    @property
    def is_float(self) -> bool:
        return self.block_values == 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of ``columns`` values; ``columns`` must be whole blocks."""
        blocks, rest = divmod(columns, self.block_values)
        if rest:
            raise ValueError(f"{columns} columns are not whole {self.name} blocks of {self.block_values}")
        return blocks * self.block_bytes


FORMATS: Final = (
    QuantFormat("F32", 1, 4),
    QuantFormat("F16", 1, 2),
    QuantFormat("Q4_0", 32, 18),
    QuantFormat("Q4_1", 32, 20),
    QuantFormat("Q5_0", 32, 22),
    QuantFormat("Q5_1", 32, 24),
    QuantFormat("Q8_0", 32, 34),
    QuantFormat("Q2_K", 256, 84),
    QuantFormat("Q3_K", 256, 110),
    QuantFormat("Q4_K", 256, 144),
    QuantFormat("Q5_K", 256, 176),
    QuantFormat("Q6_K", 256, 210),
    QuantFormat("IQ4_NL", 32, 18),
    QuantFormat("BF16", 1, 2),
)
"""The tensor formats of GGUF files, with the sizes of the public GGML block layouts."""
IQ4_NL_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of IQ4_NL's 4-bit codes."""
BY_NAME: Final[dict[str, QuantFormat]] = {f.name: f for f in FORMATS}


Arithmetic = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]
"""The number format of products, by which the peak rates of a machine are listed."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values are stored, and the number format in which they are multiplied."""

    name: str
    bits: int
    arithmetic: Arithmetic
    tile_columns: int = 1
    tile_rows: int = 1
    tile_bytes: int = 0
    row_bytes: int = 0

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of that many values."""
        tiles = -(-rows // self.tile_rows) * -(-columns // self.tile_columns)
        return -(-self.bits * rows * columns // 8) + self.tile_bytes * tiles + self.row_bytes * rows

    @property
    def bytes_per_value(self) -> float:
        """Bytes of a value in a large matrix, its part of the tiles' scales included."""
        return self.bits / 8 + self.tile_bytes / (self.tile_rows * self.tile_columns)

    @classmethod
    def of_gguf(cls, quant: QuantFormat) -> ValueFormat:
        """A format of GGUF files. Codes are multiplied as 8-bit integers, as llama.cpp and Twofold do."""
        values, size = quant.block_values, quant.block_bytes
        bits = 8 * size // values
        arithmetic = _FLOATS.get(quant.name, "int8")
        return cls(quant.name, bits, arithmetic, values, tile_bytes=size - bits * values // 8)


_FLOATS: Final[Mapping[str, Arithmetic]] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}

FP32: Final = ValueFormat("fp32", 32, "fp32")
BF16: Final = ValueFormat("bf16", 16, "bf16")
FP16: Final = ValueFormat("fp16", 16, "fp16")
FP8: Final = ValueFormat("fp8", 8, "fp8")
FP8_BLOCK: Final = ValueFormat("fp8-block", 8, "fp8", 128, 128, 4)
"""DeepSeek-V3's: a float32 scale for every 128 × 128 values."""
INT8: Final = ValueFormat("int8", 8, "bf16")
"""Weight-only, multiplied as bf16. The one scale for each output is too small to count."""
W8A8: Final = ValueFormat("w8a8", 8, "int8")
INT4: Final = ValueFormat("int4", 4, "bf16", 128, 1, 2)
"""Weight-only, one 16-bit scale for 128 values (GPTQ, AWQ)."""
NF4: Final = ValueFormat("nf4", 4, "bf16", 64, 1, 4)
MXFP4: Final = ValueFormat("mxfp4", 4, "fp4", 32, 1, 1)
"""OCP microscaling: an 8-bit exponent for 32 values."""
NVFP4: Final = ValueFormat("nvfp4", 4, "fp4", 16, 1, 1)

VALUE_FORMATS: Final[Mapping[str, ValueFormat]] = {
    f.name.lower(): f
    for f in (
        *(ValueFormat.of_gguf(quant) for quant in FORMATS),
        *(FP32, BF16, FP16, FP8, FP8_BLOCK, INT8, W8A8, INT4, NF4, MXFP4, NVFP4),
    )
}
"""By name in lower case. ``bf16`` is the float, which GGUF's BF16 is too."""


def find_format(name: str, formats: Mapping[str, ValueFormat] = VALUE_FORMATS) -> ValueFormat:
    """The one of ``formats`` with that name, in any case. Raises ParameterError with the nearest known name."""
    found = formats.get(name.strip().lower())
    if found is None:
        hint = did_you_mean(name.lower(), sorted(formats))
        raise ParameterError(f"There is no number format {name!r:.60}.", param="format", hint=hint)
    return found


def grouped(base: ValueFormat, group: int) -> ValueFormat:
    """``base`` with scales for every ``group`` values of a row; one for each row where ``group`` is not positive."""
    if group <= 0:
        return replace(base, name=f"{base.name}-row", tile_columns=1 << 31)
    return base if group == base.tile_columns else replace(base, name=f"{base.name}-g{group}", tile_columns=group)
