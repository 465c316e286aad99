"""How many bytes keys and values take: the only place that knows it, for engine, kernels, server and planner alike.

    one layer      2 · heads · bytes of ``head_dim`` values, for each position
    a block        that of ``block_size`` positions, for each layer of its group

A value has the bits of its format; formats with scales keep them beside the values of each head and position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from twofold.core.model import KVGroup, ModelSpec
from twofold.core.values import FP16, FP32, ValueFormat

KVType = Literal["f16", "f32"]
KV_FORMATS: Final[Mapping[KVType, ValueFormat]] = {"f16": FP16, "f32": FP32}
"""The formats that the engine keeps keys and values in."""


def key_value_bytes(heads: int, head_dim: int, positions: int, values: ValueFormat) -> int:
    """Bytes of the keys and values of so many heads and positions in one layer."""
    return 2 * heads * values.nbytes(positions, head_dim)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The KV cache of one model, in blocks of ``block_size`` positions."""

    kv_heads: int
    head_dim: int
    block_size: int
    dtype: KVType

    @classmethod
    def of(cls, spec: ModelSpec, dtype: KVType, block_size: int = 1) -> Self:
        """The layout of a model's cache."""
        return cls(spec.attention.kv_heads, spec.attention.head_dim, block_size, dtype)

    @property
    def head_bytes(self) -> int:
        """Bytes of one head of one layer in a block: its keys, then its values."""
        return self._bytes(1, self.block_size)

    @property
    def layer_bytes(self) -> int:
        """Bytes of all heads of one layer in a block."""
        return self._bytes(self.kv_heads, self.block_size)

    def block_bytes(self, group: KVGroup) -> int:
        """Bytes of a block of the group: those of all its layers."""
        return len(group.layers) * self.layer_bytes

    def token_bytes(self, layers: int) -> int:
        """Bytes that one token adds in so many layers."""
        return layers * self._bytes(self.kv_heads, 1)

    def _bytes(self, heads: int, positions: int) -> int:
        return key_value_bytes(heads, self.head_dim, positions, KV_FORMATS[self.dtype])
