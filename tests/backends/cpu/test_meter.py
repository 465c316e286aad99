"""The meter: each operation's counts, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support.meter import MeterOps, OpCounter, ShapeOnly, meter_step
from twofold.core.model import GroupedAttention, RopeSpec
from twofold.core.values import BY_NAME, FP32, QuantFormat
from twofold.models.ops import Batch, TensorRef, Wanted


@dataclass(frozen=True, slots=True)
class Tensor:
    format: QuantFormat
    name: str = ""
    rows: int = 0
    columns: int = 0
    nbytes: int = 0


TENSORS = {
    "embedding": Tensor(BY_NAME["Q8_0"]),
    "layers.0.q": Tensor(BY_NAME["Q4_0"]),
    "layers.1.q": Tensor(BY_NAME["Q4_0"]),
    "layers.0.q.bias": Tensor(BY_NAME["F32"]),
    "layers.0.attention_norm": Tensor(BY_NAME["F32"]),
    "layers.0.q_norm": Tensor(BY_NAME["F32"]),
    "head": Tensor(BY_NAME["F16"]),
}
EVERYTHING = GroupedAttention(heads=4, kv_heads=2, head_dim=8, scale=1.0)
Q = TensorRef("layers.0.q", 64, 32)


def batch(positions: list[int], starts: list[int], logits: list[int]) -> Batch:
    tables = np.zeros((1, len(starts) - 1, 1), np.int32)
    arrays = (np.array(values, np.int32) for values in (positions, positions, starts))
    tokens, where, ends = arrays
    return Batch(tokens, where, ends, tables, np.array(logits, np.int32))


STEP = batch([3, 4, 5, 9], [0, 3, 4], [2, 3])


def ops() -> MeterOps:
    return MeterOps(TENSORS, STEP)


def test_embedding_rows_are_looked_up() -> None:
    meter = ops()
    assert meter.embed(TensorRef("embedding", 100, 32), 1.0) == ShapeOnly(4, 32)
    assert meter.meters["embedding"] == OpCounter(calls=1, activation_bytes=4 * 34 + 4 * 32 * 4)


def test_codes_and_floats_are_told_apart() -> None:
    meter = ops()
    assert meter.linear(ShapeOnly(4, 32), Q) == ShapeOnly(4, 64)
    meter.linear(ShapeOnly(2, 32), TensorRef("head", 100, 32))
    assert meter.meters["q"].integer_macs == 4 * 64 * 32
    assert meter.meters["q"].weight_bytes == 64 * 18
    assert meter.meters["head"].float_macs == 2 * 100 * 32
    assert meter.total.macs == 4 * 64 * 32 + 2 * 100 * 32
    assert meter.total.calls == 2


def test_a_tensor_is_read_once_a_step() -> None:
    meter = ops()
    for _ in range(2):
        meter.linear(ShapeOnly(4, 32), Q, TensorRef("layers.0.q.bias", 1, 64))
    meter.linear(ShapeOnly(4, 32), TensorRef("layers.1.q", 64, 32))
    assert meter.meters["q"].weight_bytes == 2 * 64 * 18 + 64 * 4
    assert meter.meters["q"].calls == 3


def test_parts_of_a_tensor_are_read_apart() -> None:
    meter = ops()
    for first in (0, 40):
        meter.linear(ShapeOnly(1, 32), TensorRef("layers.0.q", 24, 32, first))
    assert meter.meters["q"].weight_bytes == 48 * 18


def test_a_tied_head_is_an_output() -> None:
    meter = ops()
    meter.linear(ShapeOnly(2, 32), TensorRef("embedding", 100, 32))
    assert meter.meters["head"].weight_bytes == 100 * 34


def test_attention_sees_what_came_before() -> None:
    """Rows at 3, 4 and 5 see 4, 5 and 6 positions and read 6; the row at 9 of another sequence sees and reads 10."""
    meter = ops()
    assert meter.attention(0, ShapeOnly(4, 32), EVERYTHING) == ShapeOnly(4, 32)
    counted = meter.meters["attention"]
    assert counted.float_macs == 2 * 32 * (4 + 5 + 6 + 10)
    assert counted.kv_read == (6 + 10) * 2 * 2 * 8 * 2


def test_attention_in_a_window() -> None:
    """Of 2 positions: rows at 3, 4, 5 read 2 … 5, the one at 9 reads 8 and 9."""
    meter = ops()
    meter.attention(0, ShapeOnly(4, 32), GroupedAttention(4, 2, 8, window=2))
    assert meter.meters["attention"].float_macs == 2 * 32 * 8
    assert meter.meters["attention"].kv_read == (4 + 2) * 2 * 2 * 8 * 2


def test_keys_and_values_are_written_in_the_cache_s_type() -> None:
    meter = MeterOps(TENSORS, STEP, kv=FP32)
    meter.store_kv(0, ShapeOnly(4, 16), ShapeOnly(4, 16))
    assert meter.meters["store_kv"].kv_written == 2 * 4 * 16 * 4


def test_operations_on_values_move_bytes() -> None:
    meter, x = ops(), ShapeOnly(4, 32)
    norm = TensorRef("layers.0.attention_norm", 1, 32)
    assert meter.rms_norm(x, norm, 1e-5) == x
    assert meter.head_norm(x, TensorRef("layers.0.q_norm", 1, 8), 1e-5, 4) == x
    assert meter.add(x, x) == meter.gated(x, x, "silu") == meter.softcap(x, 30.0) == x
    assert meter.rope(x, 4, RopeSpec(8, 1e4, "halves")) == x
    assert meter.select(x, Wanted.LOGITS) == ShapeOnly(2, 32)
    moved = {name: counted.activation_bytes // (4 * 32 * 4) for name, counted in meter.meters.items()}
    assert moved == {"attention_norm": 2, "q_norm": 2, "add": 3, "gated": 3, "softcap": 2, "rope": 2, "select": 1}
    assert meter.meters["attention_norm"].weight_bytes == 32 * 4


def test_operations_on_no_rows_do_nothing() -> None:
    meter = ops()
    nothing = meter.select(ShapeOnly(4, 32), Wanted.HIDDEN)
    assert nothing == ShapeOnly(0, 32)
    assert meter.linear(nothing, Q) == ShapeOnly(0, 64)
    meter.rms_norm(nothing, TensorRef("layers.0.attention_norm", 1, 32), 1e-5)
    assert not meter.meters


def test_a_step_is_metered_by_running_its_code() -> None:
    meter = meter_step(lambda seen: seen.linear(ShapeOnly(1, 32), Q), TENSORS, STEP)
    assert meter.total.integer_macs == 64 * 32
