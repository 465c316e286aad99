"""The meter: the decoder's operations counted and not computed.

``MeterOps`` implements ``Ops`` like any other: a model's own code runs on it, layer by layer, with widths in place of
arrays. What comes out is what a step of that model costs, counted from what the code asked for and not from formulas,
so that formulas can be held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from twofold.core.kv_layout import key_value_bytes
from twofold.core.model import Activation, GroupedAttention, RopeSpec
from twofold.core.tensors import EMBEDDING, HEAD, StoredTensor, layer_and_role
from twofold.core.values import FP16, QuantFormat, ValueFormat
from twofold.models.ops import Batch, TensorRef, Wanted

FLOAT_BYTES: Final = 4
"""Activations are float32."""


@dataclass(frozen=True, slots=True)
class ShapeOnly:
    """In place of an array: float32 [rows, width]. Operations on no rows do nothing and are not counted."""

    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        return FLOAT_BYTES * self.rows * self.width


@dataclass(slots=True)
class OpCounter:
    """What the calls of one operation came to. A tensor that several calls of a step read counts once."""

    calls: int = 0
    integer_macs: int = 0
    float_macs: int = 0
    weight_bytes: int = 0
    kv_read: int = 0
    kv_written: int = 0
    activation_bytes: int = 0

    @property
    def macs(self) -> int:
        return self.integer_macs + self.float_macs


@dataclass(slots=True)
class MeterOps:
    """``Ops`` that counts a step over ``batch``. ``tensors`` are the file's; ``kv`` is the format of cached values.

    ``meters`` has what was counted by operation: matrices and norms by the role of their tensor, all else by the name
    of the operation.
    """

    tensors: Mapping[str, StoredTensor]
    batch: Batch
    kv: ValueFormat = FP16
    meters: dict[str, OpCounter] = field(default_factory=dict)
    _read: set[TensorRef] = field(default_factory=set)

    @property
    def total(self) -> OpCounter:
        """The sum over all operations."""
        sums = OpCounter()
        for meter in self.meters.values():
            for name in OpCounter.__slots__:
                setattr(sums, name, getattr(sums, name) + getattr(meter, name))
        return sums

    def embed(self, table: TensorRef, scale: float) -> ShapeOnly:  # noqa: ARG002
        x = ShapeOnly(len(self.batch.tokens), table.columns)
        looked_up = x.rows * self._format(table).row_bytes(table.columns)
        self._count(_role(table)).activation_bytes += looked_up + x.nbytes
        return x

    def rms_norm(self, x: ShapeOnly, weight: TensorRef, eps: float) -> ShapeOnly:  # noqa: ARG002
        return self._norm(x, weight)

    def head_norm(self, x: ShapeOnly, weight: TensorRef, eps: float, heads: int) -> ShapeOnly:  # noqa: ARG002
        assert weight.columns * heads == x.width
        return self._norm(x, weight)

    def linear(self, x: ShapeOnly, weight: TensorRef, bias: TensorRef | None = None) -> ShapeOnly:
        assert x.width == weight.columns
        y = ShapeOnly(x.rows, weight.rows)
        if not x.rows:
            return y
        meter = self._count(HEAD if _role(weight) == EMBEDDING else _role(weight))
        macs = x.rows * weight.rows * weight.columns
        if self._format(weight).is_float:
            meter.float_macs += macs
        else:
            meter.integer_macs += macs
        meter.weight_bytes += self._once(weight) + (0 if bias is None else self._once(bias))
        meter.activation_bytes += x.nbytes + y.nbytes
        return y

    def add(self, x: ShapeOnly, y: ShapeOnly) -> ShapeOnly:
        assert x == y
        return self._pass("add", x, 3)

    def gated(self, gate: ShapeOnly, up: ShapeOnly, activation: Activation) -> ShapeOnly:  # noqa: ARG002
        assert gate == up
        return self._pass("gated", gate, 3)

    def rope(self, x: ShapeOnly, heads: int, rope: RopeSpec) -> ShapeOnly:
        assert heads * rope.dims <= x.width
        return self._pass("rope", x, 2)

    def store_kv(self, layer: int, k: ShapeOnly, v: ShapeOnly) -> None:  # noqa: ARG002
        meter = self._count("store_kv")
        meter.kv_written += self.kv.nbytes(k.rows, k.width) + self.kv.nbytes(v.rows, v.width)
        meter.activation_bytes += k.nbytes + v.nbytes

    def attention(self, layer: int, q: ShapeOnly, spec: GroupedAttention) -> ShapeOnly:  # noqa: ARG002
        """Each row's products with every position that it sees; each position read once for a sequence's rows."""
        meter = self._count("attention")
        for start, stop in zip(self.batch.row_starts, self.batch.row_starts[1:], strict=False):
            rows = self.batch.positions[start:stop].astype(np.int64)
            if not len(rows):
                continue
            first = np.zeros_like(rows) if spec.window is None else np.maximum(0, rows + 1 - spec.window)
            seen = int((rows + 1 - first).sum())
            meter.float_macs += 2 * spec.heads * spec.head_dim * seen
            positions = np.zeros(int(rows.max()) + 1, np.bool_)
            for low, high in zip(first, rows, strict=True):
                positions[low : high + 1] = True
            read = int(np.count_nonzero(positions))
            meter.kv_read += key_value_bytes(spec.kv_heads, spec.head_dim, read, self.kv)
        meter.activation_bytes += 2 * q.nbytes
        return q

    def select(self, x: ShapeOnly, rows: Wanted) -> ShapeOnly:
        wanted = self.batch.logit_rows if rows is Wanted.LOGITS else self.batch.hidden_rows
        return self._pass("select", ShapeOnly(len(wanted), x.width), 2)

    def softcap(self, x: ShapeOnly, cap: float) -> ShapeOnly:  # noqa: ARG002
        return self._pass("softcap", x, 2)

    def _norm(self, x: ShapeOnly, weight: TensorRef) -> ShapeOnly:
        if x.rows:
            meter = self._count(_role(weight))
            meter.weight_bytes += self._once(weight)
            meter.activation_bytes += 2 * x.nbytes
        return x

    def _pass(self, name: str, x: ShapeOnly, moved: int) -> ShapeOnly:
        """An operation on values one by one, which moves so many arrays like ``x``."""
        if x.rows:
            self._count(name).activation_bytes += moved * x.nbytes
        return x

    def _count(self, name: str) -> OpCounter:
        meter = self.meters.setdefault(name, OpCounter())
        meter.calls += 1
        return meter

    def _once(self, ref: TensorRef) -> int:
        """The tensor's bytes when it is read for the first time in the step, and then none."""
        if ref in self._read:
            return 0
        self._read.add(ref)
        return ref.rows * self._format(ref).row_bytes(ref.columns)

    def _format(self, ref: TensorRef) -> QuantFormat:
        return self.tensors[ref.name].format


def meter_step(
    decode: Callable[[MeterOps], object], tensors: Mapping[str, StoredTensor], batch: Batch, kv: ValueFormat = FP16
) -> MeterOps:
    """Runs a decoder on the meter: ``decode`` is given it as its operations."""
    ops = MeterOps(tensors, batch, kv)
    decode(ops)
    return ops


def _role(ref: TensorRef) -> str:
    return layer_and_role(ref.name)[1]
