"""Tensor formats of GGUF files: how many values a block holds and how many bytes it takes.

The table is the only place that knows them. Sizes follow the public GGML block layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A tensor format. Rows are stored as whole blocks of ``block_values`` values in ``block_bytes`` bytes."""

    name: str
    block_values: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_values

    @property
    def is_float(self) -> bool:
        return self.block_values == 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of ``columns`` values; ``columns`` must be whole blocks."""
        blocks, rest = divmod(columns, self.block_values)
        if rest:
            raise ValueError(f"{columns} columns are not whole {self.name} blocks of {self.block_values}")
        return blocks * self.block_bytes


FORMATS: Final[tuple[QuantFormat, ...]] = (
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

BY_NAME: Final[dict[str, QuantFormat]] = {f.name: f for f in FORMATS}
