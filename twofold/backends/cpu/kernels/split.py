"""Splits of attention: what is kept of a query while it reads one, and how several become its result.

    m, l, o       largest score, sum of weights, weighted sum of values; at first −1e30, 0, 0
    merging       M' = max(M, m);  (L, O) = (L, O)·exp(M − M') + (l, o)·exp(m − M')
    result        O / L

A split of nothing but hidden positions leaves m at −1e30 and l, o at 0, and changes nothing (see ``attention``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.backends.cpu.kernels.ir import F32, F32X16, I32, I64, Kernel, Value
from twofold.backends.cpu.kernels.math import exp
from twofold.backends.cpu.kernels.signature import StepFields, kernel, step_pointer
from twofold.core.kv_layout import KVType

SPLIT: Final = 256
"""Positions of a split; it begins at a multiple of them."""
NOTHING: Final = -1e30

MERGE_INTS: Final = 4
"""int32 fields of a merge: row, first partial slot, partials."""

ATTENTION_FIELDS: Final = (
    "q", "q_stride", "out", "out_stride", "cache", "group", "block_bytes", "head_bytes", "block_size", "kv_heads",
    "scale", "window", "softcap", "partials",
)  # fmt: skip
ATTENTION_POINTERS: Final = frozenset({"q", "out", "cache", "partials"})


@dataclass(frozen=True, slots=True)
class AttentionKernelSpec:
    """What distinguishes attention kernels. ``group`` query heads share a KV head."""

    head_dim: int
    group: int
    dtype: KVType
    softcap: bool

    @property
    def name(self) -> str:
        cap = "_softcap" if self.softcap else ""
        return f"attention_d{self.head_dim}_g{self.group}_{self.dtype}{cap}"

    @property
    def partial_floats(self) -> int:
        """Floats of one query head's partial: m, l (a line of their own), o."""
        return 16 + self.head_dim


class QueryStates:
    """m, l and o of the queries of a tile, in scratch: a line for m and l, then the outputs."""

    def __init__(self, k: Kernel, base: Value, head_dim: int) -> None:
        self._k = k
        self._base = base
        self._bytes = 4 * (16 + head_dim)

    def at(self, query: Value | int) -> Value:
        return self._base + query * self._bytes

    def out(self, query: Value | int) -> Value:
        return self.at(query) + 64

    def reset(self, query: Value | int, head_dim: int) -> None:
        k = self._k
        k.store(k.splat(F32, NOTHING), self.at(query))
        k.store(k.splat(F32, 0.0), self.at(query) + 4)
        for i in range(0, head_dim, 16):
            k.store(k.splat(F32X16, 0.0), self.out(query) + 4 * i)


def merge_state(k: Kernel, total: Value, part: Value, head_dim: int) -> None:
    """(M, L, O) at ``total`` ← merged with (m, l, o) at ``part``."""
    old, new = k.load(F32, total), k.load(F32, part)
    top = k.fmax(old, new)
    keep, take = exp(k, old - top), exp(k, new - top)
    k.store(top, total)
    k.store(k.fma(k.load(F32, part + 4), take, k.load(F32, total + 4) * keep), total + 4)
    keep16, take16 = k.splat(F32X16, keep), k.splat(F32X16, take)
    for i in range(0, head_dim, 16):
        at = 64 + 4 * i
        k.store(k.fma(k.load(F32X16, part + at), take16, k.load(F32X16, total + at) * keep16), total + at)


def store_result(k: Kernel, total: Value, out: Value, head_dim: int) -> None:
    """out = O / L."""
    weight = k.splat(F32X16, k.load(F32, total + 4))
    for i in range(0, head_dim, 16):
        k.store(k.load(F32X16, total + 64 + 4 * i) / weight, out + 4 * i)


def merge_kernel(spec: AttentionKernelSpec) -> Kernel:
    """Joins the partials of rows whose splits were done apart. A unit is a merge and a query head."""
    with kernel(f"merge_d{spec.head_dim}_g{spec.group}", ATTENTION_FIELDS, ATTENTION_POINTERS) as (k, a, units):
        heads = a["kv_heads"] * spec.group
        total = QueryStates(k, k.args[4], spec.head_dim)
        for unit in units:
            head = unit % heads
            at = step_pointer(k, StepFields.MERGE_LIST) + unit // heads * (4 * MERGE_INTS)
            row, first, count = (k.load(I32, at + 4 * i).to(I64) for i in range(3))
            total.reset(0, spec.head_dim)
            for index in k.range(first, first + count):
                part = a["partials"] + (index * heads + head) * (4 * spec.partial_floats)
                merge_state(k, total.at(0), part, spec.head_dim)
            store_result(k, total.at(0), a["out"] + row * a["out_stride"] + head * (4 * spec.head_dim), spec.head_dim)
    return k
