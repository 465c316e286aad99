"""What the splits of attention (see ``attention``) have in common: the states of queries, and how they are merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twofold.backends.cpu.kernels.integers import spread_back
from twofold.backends.cpu.kernels.ir import F32, F32X16, I32, I64, Kernel, Value
from twofold.backends.cpu.kernels.math import exp, exp2_below_0
from twofold.backends.cpu.kernels.signature import kernel
from twofold.core.kv_layout import INTEGER_TYPES, KVType

NO_SCORE: Final = -1e30
"""Largest score of a split before its first chunk: finite, because −inf − −inf is not a number."""
LEAST_MERGED: Final = -125.0
"""Where splits are merged, lower powers of two are 0: the least normal float32 is 2^−126."""
MERGE_INTS: Final = 4
"""int32 fields of a merge: row, first partial slot, number of partials."""

ATTENTION_FIELDS: Final = (
    "q", "q_stride", "out", "out_stride", "cache", "group", "block_bytes", "head_bytes", "block_size", "kv_heads",
    "scale", "window", "softcap", "partials", "items", "merges",
)  # fmt: skip
ATTENTION_POINTERS: Final = frozenset({"q", "out", "cache", "partials", "items", "merges"})


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
    def halves(self) -> bool:
        """Whether factors are bfloat16."""
        return self.dtype == "bf16"

    @property
    def integers(self) -> bool:
        """Whether keys, values and factors are integers."""
        return self.dtype in INTEGER_TYPES

    @property
    def powers(self) -> bool:
        """Whether exponentials are powers of two."""
        return self.halves or self.integers

    @property
    def merge_name(self) -> str:
        """The name of the kernel that merges partials."""
        return f"merge_d{self.head_dim}_g{self.group}{'_powers' * self.powers}{'_integers' * self.integers}"

    @property
    def partial_floats(self) -> int:
        """Floats of one query head's partial: a line for m and l, then o."""
        return 16 + self.head_dim


class QueryStates:
    """m, l and o of each query of a tile, in scratch: a cache line for m and l, then the outputs."""

    def __init__(self, k: Kernel, base: Value, head_dim: int) -> None:
        self._k = k
        self._base = base
        self._head_dim = head_dim

    def at(self, query: Value | int) -> Value:
        return self._base + query * (4 * (16 + self._head_dim))

    def out(self, query: Value | int) -> Value:
        return self.at(query) + 64

    def reset(self, query: Value | int) -> None:
        k = self._k
        k.store(k.splat(F32, NO_SCORE), self.at(query))
        k.store(k.splat(F32, 0.0), self.at(query) + 4)
        for i in range(0, self._head_dim, 16):
            k.store(k.splat(F32X16, 0.0), self.out(query) + 4 * i)


def merge_state(k: Kernel, total: Value, part: Value, spec: AttentionKernelSpec) -> None:
    """(M, L, O) at ``total`` ← merged with (m, l, o) at ``part``."""
    old, new = k.load(F32, total), k.load(F32, part)
    top = k.fmax(old, new)
    keep, take = (exp2_below_0(k, x - top, LEAST_MERGED) if spec.powers else exp(k, x - top) for x in (old, new))
    k.store(top, total)
    k.store(k.fma(k.load(F32, part + 4), take, k.load(F32, total + 4) * keep), total + 4)
    keep16, take16 = k.splat(F32X16, keep), k.splat(F32X16, take)
    for i in range(0, spec.head_dim, 16):
        at = 64 + 4 * i
        k.store(k.fma(k.load(F32X16, part + at), take16, k.load(F32X16, total + at) * keep16), total + at)


def store_result(k: Kernel, total: Value, out: Value, spec: AttentionKernelSpec) -> None:
    """out = O / L, spread back where values are."""
    weight = k.splat(F32X16, k.load(F32, total + 4))
    result = [k.load(F32X16, total + 64 + 4 * i) / weight for i in range(0, spec.head_dim, 16)]
    for i, v in enumerate(spread_back(k, result) if spec.integers else result):
        k.store(v, out + 64 * i)


def merge_kernel(spec: AttentionKernelSpec) -> Kernel:
    """Merges the partials of rows whose splits were computed separately. A unit is a merge and a query head."""
    with kernel(spec.merge_name, ATTENTION_FIELDS, ATTENTION_POINTERS) as (k, a, units):
        heads = a["kv_heads"] * spec.group
        total = QueryStates(k, k.args[4], spec.head_dim)
        for unit in units:
            head = unit % heads
            at = a["merges"] + unit // heads * (4 * MERGE_INTS)
            row, first, count = (k.load(I32, at + 4 * i).to(I64) for i in range(3))
            total.reset(0)
            for index in k.range(first, first + count):
                part = a["partials"] + (index * heads + head) * (4 * spec.partial_floats)
                merge_state(k, total.at(0), part, spec)
            store_result(k, total.at(0), a["out"] + row * a["out_stride"] + head * (4 * spec.head_dim), spec)
    return k
