"""Counts worked out by hand, and laws that hold for every model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.count.steps import decode_step, prefill
from twofold.core.errors import ParameterError
from twofold.core.model import (
    ExpertFFN,
    GatedFFN,
    GroupedAttention,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    PlainFFN,
    read_positions,
    visible,
)
from twofold.core.values import FP8, INT4, INT8, W8A8, ValueFormat
from twofold.planner.count.memory import (
    ReplicaMemory,
    activation_bytes,
    kv_bytes,
    kv_bytes_per_token,
    parameters,
    streamed_bytes,
    weight_bytes,
)
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import Operator, SequenceRows, StepCost, Work, step
from twofold.planner.shapes.known import find_shape, known_shapes

EVERY = sorted(known_shapes())


def small(layer: LayerSpec, *, tied_head: bool = False) -> ModelSpec:
    return ModelSpec("small", 32, 100, 512, (layer,) * 2, tied_head)


DENSE = small(LayerSpec(GroupedAttention(4, 2, 8), GatedFFN(48)))
WINDOWED = ModelSpec(
    "windowed",
    32,
    100,
    512,
    (
        *(LayerSpec(GroupedAttention(4, 2, 8, window=5), GatedFFN(48)),) * 3,
        LayerSpec(GroupedAttention(4, 2, 8), GatedFFN(48)),
    ),
)
SPARSE = small(LayerSpec(GroupedAttention(4, 2, 8), ExpertFFN(8, 2, 16, shared=16)))
LATENT = small(LayerSpec(LatentAttention(4, 24, 16, rope_dim=4, nope_dim=8, v_dim=8), GatedFFN(48)))


def test_a_dense_step_by_hand() -> None:
    """2 layers of q 32·32, k and v 16·32, o 32·32, three of 48·32; a head of 100·32."""
    layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32
    assert parameters(DENSE).active == 2 * layer
    work = prefill(DENSE, 6, cached=4)
    assert work.flops == 2 * (6 * 2 * layer + 3200) + 2 * 4 * 32 * sum(range(5, 11))
    assert work.weight_bytes == 2 * (2 * layer + 3200 + 5 * 32)
    assert work.kv_read == 2 * 10 * 2 * 16 * 2
    assert work.kv_written == 2 * 6 * 2 * 16 * 2
    assert work.named("gate").calls == 2


def test_windows_by_hand() -> None:
    work = prefill(WINDOWED, 20)
    seen = 3 * sum(min(i, 5) for i in range(1, 21)) + sum(range(1, 21))
    assert work.named("attention").flops == 4 * 32 * seen
    assert decode_step(WINDOWED, [30]).kv_read == (3 * 5 + 30) * 2 * 16 * 2
    assert kv_bytes(WINDOWED, 30) == (3 * 5 + 30) * 64
    assert kv_bytes(WINDOWED, 30, block=4) == (3 * 8 + 32) * 64


def test_experts_by_hand() -> None:
    alone, many = decode_step(SPARSE, [1]), decode_step(SPARSE, [1] * 4)
    up = 16 * 32
    assert alone.named("expert_up").flops == 2 * 2 * 2 * up
    assert alone.named("expert_up").weight_bytes == pytest.approx(2 * 2 * up * 2)
    assert many.named("expert_up").weight_bytes == pytest.approx(2 * 8 * (1 - 0.75**4) * up * 2)
    assert many.named("shared_up").weight_bytes == 2 * up * 2
    assert parameters(SPARSE).active == parameters(SPARSE).layers - 2 * 6 * 3 * up
    assert decode_step(SPARSE, [1] * 400).weight_bytes == pytest.approx(streamed_bytes(SPARSE))


def test_latent_attention_takes_the_cheaper_form() -> None:
    """Decoding works on the latents; a whole prompt makes keys and values of each token once."""
    decode, whole = decode_step(LATENT, [200]), prefill(LATENT, 200)
    assert decode.named("attention").flops == 2 * 4 * 2 * (2 * 16 + 4) * 200
    assert decode.named("k_b").flops == 2 * 2 * 4 * 8 * 16
    assert whole.named("attention").flops == 2 * 4 * 2 * (8 + 4 + 8) * visible(0, 200, None)
    assert whole.named("k_b").flops == 200 * decode.named("k_b").flops
    assert decode.kv_read == 2 * 200 * 20 * 2
    assert kv_bytes_per_token(LATENT) == 2 * 20 * 2


def test_devices_share_a_layer() -> None:
    one, two = decode_step(DENSE, [50]), decode_step(DENSE, [50], setup=Setting(tp=2))
    for name in ("q", "k", "o", "down", "head", "attention"):
        assert two.named(name).flops * 2 == one.named(name).flops, name
    assert two.kv_read * 2 == one.kv_read
    assert two.named("attention_norm") == one.named("attention_norm")
    assert (two.all_reduces, two.all_reduce_bytes) == (4, 4 * 32 * 2)
    assert one.all_reduces == 0


def test_devices_beyond_the_kv_heads_keep_copies() -> None:
    setup = Setting(tp=4)
    assert (
        kv_bytes_per_token(DENSE, setup) == kv_bytes_per_token(DENSE, Setting(tp=2)) == kv_bytes_per_token(DENSE) // 2
    )
    assert decode_step(DENSE, [9], setup=setup).named("k").flops == 2 * 2 * 8 * 32
    assert kv_bytes_per_token(LATENT, setup) == kv_bytes_per_token(LATENT)


def test_devices_that_cannot_share_the_heads() -> None:
    with pytest.raises(ParameterError, match="4 attention heads"):
        decode_step(DENSE, [1], setup=Setting(tp=3))
    with pytest.raises(ParameterError, match="parts of experts"):
        Setting(tp=4, ep=3)


def test_expert_parallel_devices_hold_whole_experts() -> None:
    cut, whole = Setting(tp=4), Setting(tp=4, ep=4)
    assert weight_bytes(SPARSE, cut) == weight_bytes(SPARSE, whole)
    down = [decode_step(SPARSE, [1] * 8, setup=setup).named("expert_down") for setup in (cut, whole)]
    assert down[0].flops == down[1].flops
    assert down[0].weight_bytes == pytest.approx(down[1].weight_bytes)


def test_kv_formats() -> None:
    assert kv_bytes_per_token(DENSE, Setting(kv=FP8)) * 2 == kv_bytes_per_token(DENSE)
    scaled = ValueFormat("int8-head", 8, "bf16", 8, tile_bytes=2)
    assert kv_bytes_per_token(DENSE, Setting(kv=scaled)) == 2 * 2 * 2 * (8 + 2)


def test_weights_in_other_formats() -> None:
    four = DENSE.stored_as(INT4)
    assert parameters(four) == parameters(DENSE)
    assert decode_step(four, [1]).named("up").weight_bytes == 2 * (48 * 32 // 2 + 2 * 48)
    assert decode_step(four, [1]).named("head") == decode_step(DENSE, [1]).named("head")
    assert DENSE.stored_as(W8A8).stored_as(INT8) == DENSE.stored_as(INT8)
    assert decode_step(DENSE.stored_as(W8A8), [1]).flops_by_arithmetic()["int8"] == 2 * parameters(DENSE).active
    assert DENSE.stored_as(INT8, embedding=INT8).formats.matrices == INT8


def test_plain_feed_forwards_and_parallel_layers() -> None:
    plain = small(LayerSpec(GroupedAttention(4, 4, 8), PlainFFN(64, bias=True), norms=1), tied_head=True)
    work = prefill(plain, 3)
    assert "gate" not in {each.name for each in work.operators}
    assert work.named("up").weight_bytes == 2 * 2 * (64 * 32 + 64)
    assert streamed_bytes(plain) == weight_bytes(plain)


def test_a_tied_head_is_read_as_the_head() -> None:
    tied = small(LayerSpec(GroupedAttention(4, 2, 8), GatedFFN(48)), tied_head=True)
    assert decode_step(tied, [1]).weight_bytes == decode_step(DENSE, [1]).weight_bytes
    assert weight_bytes(DENSE) - weight_bytes(tied) == 100 * 32 * 2


def test_memory_is_shared_out() -> None:
    memory = ReplicaMemory(DENSE, 1e6, PLAIN, 8, 2)
    pool = 900_000 - weight_bytes(DENSE) - activation_bytes(DENSE, PLAIN, 8, 2)
    assert memory.room().kv == pool
    assert memory.sequence_bytes(100) == 112 * kv_bytes_per_token(DENSE)
    assert memory.sequences(100) == pool // memory.sequence_bytes(100)
    assert ReplicaMemory(DENSE, 1000).sequences(100) == 0
    assert ReplicaMemory(DENSE, 1000).room().kv < 0


def test_work_joins_operators_of_one_name() -> None:
    one, other = Operator("x", "bf16", 1, flops=3), Operator("x", "int8", 1, flops=4)
    work = Work.of([one, other, one])
    assert [(each.flops, each.calls) for each in work.operators] == [(6, 2), (4, 1)]
    assert (work.named("x").flops, work.flops_by_arithmetic()) == (10, {"bf16": 6, "int8": 4})
    with pytest.raises(KeyError):
        work.named("y")
    assert (work + work).flops == 20


spans = st.builds(SequenceRows, st.integers(1, 40), st.integers(0, 60), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.lists(spans, min_size=1, max_size=5), st.sampled_from([(1, 1), (2, 1), (2, 2)]))
def test_coefficients_say_what_steps_do(name: str, batch: list[SequenceRows], devices: tuple[int, int]) -> None:
    """Also of mixed windows, recurrent layers, experts, several devices, and latent attention of prompts."""
    shape = find_shape(name)
    even = all(layer.attention.heads % 2 == 0 for _, layer in shape.runs)
    setup = Setting(*devices) if even else Setting()
    cost = StepCost.of(shape, setup)
    if isinstance(shape.runs[0][1].attention, LatentAttention):
        batch += [SequenceRows(1, 5000), SequenceRows(3000, 900), SequenceRows(2, 7000)]
    work = step(shape, batch, setup=setup)
    rows, logits = sum(span.new for span in batch), sum(span.logits for span in batch)
    attended = {w: sum(visible(s.cached, s.new, w) for s in batch) for w in cost.windows}
    moved = {w: rows + sum(read_positions(s.cached, s.new, w) for s in batch) for w in cost.windows}
    assert cost.flops(rows, logits, attended, batch) == work.flops
    assert math.isclose(cost.weight_bytes(rows, logits=logits > 0), work.weight_bytes, rel_tol=1e-9)
    assert cost.kv_bytes(moved) + 2 * cost.state_bytes * len(batch) == work.kv_read + work.kv_written


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))
def test_a_prompt_in_chunks_is_the_whole(name: str, first: int, second: int, cached: int) -> None:
    """FLOPs and bytes written add up; chunks read weights and the cache again, and read and write states again."""
    shape = find_shape(name)
    whole = prefill(shape, first + second, cached)
    parts = step(shape, [SequenceRows(first, cached, 0)]) + prefill(shape, second, cached + first)
    assert parts.kv_written == whole.kv_written + StepCost.of(shape).state_bytes
    assert parts.kv_read >= whole.kv_read
    assert parts.weight_bytes >= whole.weight_bytes
    if not isinstance(shape.runs[0][1].attention, LatentAttention):
        assert parts.flops == whole.flops


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EVERY), st.lists(st.integers(1, 10_000), min_size=1, max_size=8), st.integers(1, 500))
def test_a_mixed_step_reads_weights_once(name: str, contexts: list[int], chunk: int) -> None:
    shape = find_shape(name)
    rows = [SequenceRows(1, context - 1) for context in contexts]
    mixed, alone = step(shape, [*rows, SequenceRows(chunk)]), prefill(shape, chunk)
    decode = decode_step(shape, contexts)
    assert mixed.flops == alone.flops + decode.flops
    assert mixed.kv_read == alone.kv_read + decode.kv_read
    assert mixed.weight_bytes <= alone.weight_bytes + decode.weight_bytes
    assert mixed.weight_bytes <= streamed_bytes(shape) * (1 + 1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_devices_do_all_the_work_between_them(name: str) -> None:
    """Matrices and attention of all devices add up to one's, but for what each keeps a copy of."""
    shape = find_shape(name)
    if all(layer.attention.heads % 2 == 0 for _, layer in shape.runs):
        shared = decode_step(shape, [64], setup=Setting(tp=2))
        assert decode_step(shape, [64]).flops <= 2 * shared.flops <= 1.04 * decode_step(shape, [64]).flops
