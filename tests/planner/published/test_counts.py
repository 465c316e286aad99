"""The formulas of counting, written out with the sizes that model cards print, against what is counted."""

from __future__ import annotations

import pytest

from tests.planner.constants import LOOP
from tests.planner.count.steps import decode_step, prefill
from tests.planner.laws import latency_floor
from twofold.core.model import visible
from twofold.core.values import BF16, FP8
from twofold.planner.count.crossover import batch_tokens_crossover, context_crossover, knee_rows
from twofold.planner.count.memory import (
    ReplicaMemory,
    activation_bytes,
    kv_bytes,
    kv_bytes_per_token,
    parameters,
    streamed_bytes,
    weight_bytes,
)
from twofold.planner.count.setting import PLAIN
from twofold.planner.count.step import SequenceRows, step
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import Constants
from twofold.planner.shapes.known import find_shape

SIZES = {
    "llama-3-70b": (80, 8192, 28672, 64, 8, 128),
    "llama-3-8b": (32, 4096, 14336, 32, 8, 128),
    "qwen3-32b": (64, 5120, 25600, 64, 8, 128),
    "qwen3-0.6b": (28, 1024, 3072, 16, 8, 128),
}
"""L, H, F, n_q, n_k, d of config.json. Qwen3's d is not H / n_q."""
VOCAB = {"llama-3-70b": 128_256, "llama-3-8b": 128_256, "qwen3-32b": 151_936, "qwen3-0.6b": 151_936}
EVERY = pytest.mark.parametrize("model", SIZES)
MIXTRAL_LAYERS = 32
PROMPT, CACHED = 1_000, 3_000


def matrices(model: str) -> int:
    """P = L · (2·H·n_q·d + 2·H·n_k·d + 3·H·F)."""
    layers, hidden, ffn, heads, kv_heads, size = SIZES[model]
    return layers * (2 * hidden * heads * size + 2 * hidden * kv_heads * size + 3 * hidden * ffn)


@EVERY
def test_parameters_of_the_matrices(model: str) -> None:
    """Kaplan et al. 2020, with grouped heads; the head dimension is the configuration's."""
    found = parameters(find_shape(model))
    assert found.active == matrices(model)
    assert found.head == SIZES[model][1] * VOCAB[model]


@EVERY
def test_flops_of_a_prompt(model: str) -> None:
    """2·S·P + L · 4·n_q·d · Σ (p + i), and the head once; in closed form 2·n_q·d · ((p + S)² − p²) a layer."""
    layers, hidden, _, heads, _, size = SIZES[model]
    head, sums = 2 * hidden * VOCAB[model], sum(range(CACHED + 1, CACHED + PROMPT + 1))
    work = prefill(find_shape(model), PROMPT, CACHED)
    assert work.flops == 2 * PROMPT * matrices(model) + layers * 4 * heads * size * sums + head
    closed = layers * 2 * heads * size * ((CACHED + PROMPT) ** 2 - CACHED**2)
    assert work.named("attention").flops == pytest.approx(closed, rel=1 / (2 * CACHED + PROMPT))


def test_windows_hide_what_lies_before_them() -> None:
    """Σ_i min(p + i, w) positions in each layer of Mistral 7B v0.1, whose window is 4,096."""
    work = prefill(find_shape("mistral-7b-v0.1"), 3_000, 2_000)
    seen = sum(min(2_000 + at, 4_096) for at in range(1, 3_001))
    assert visible(2_000, 3_000, 4_096) == seen
    assert work.named("attention").flops == 32 * 4 * 32 * 128 * seen
    assert kv_bytes(find_shape("mistral-7b-v0.1"), 9_000) == 4_096 * kv_bytes_per_token(find_shape("mistral-7b-v0.1"))


@EVERY
def test_a_decode_step(model: str) -> None:
    """2·P·B + Σ 4·L·n_q·d·c FLOPs, and the head; bytes of all weights that are streamed and of Σ KV(c)."""
    layers, hidden, _, heads, kv_heads, size = SIZES[model]
    shape, contexts = find_shape(model), [1, 700, 5_000]
    work = decode_step(shape, contexts)
    rows = 2 * len(contexts) * (matrices(model) + hidden * VOCAB[model])
    assert work.flops == rows + 4 * layers * heads * size * sum(contexts)
    assert work.weight_bytes == streamed_bytes(shape)
    assert kv_bytes_per_token(shape) == 2 * layers * kv_heads * size * 2
    assert work.kv_read == sum(kv_bytes(shape, context) for context in contexts)


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_experts_that_a_step_reads(rows: int) -> None:
    """E · (1 − (1 − k/E)^B) of Mixtral's 8, of which a row takes 2: P counts those two and the router."""
    shape, expert = find_shape("mixtral-8x7b"), 3 * 4096 * 14336
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert parameters(shape).active == MIXTRAL_LAYERS * (attention + 2 * expert + 8 * 4096)
    work = decode_step(shape, [1] * rows)
    experts = sum(work.named(f"expert_{name}").weight_bytes for name in ("gate", "up", "down"))
    assert experts == pytest.approx(MIXTRAL_LAYERS * 8 * (1 - (1 - 2 / 8) ** rows) * expert * 2)


def test_latent_vectors_of_a_token() -> None:
    """L · (d_c + d_rope) · 2 bytes of DeepSeek-V3: 61 · (512 + 64) · 2."""
    assert kv_bytes_per_token(find_shape("deepseek-v3")) == 61 * (512 + 64) * 2 == 70_272


def test_sequences_that_fit() -> None:
    """⌊(share · memory − weights − activations) / KV(c)⌋, the context in whole blocks: 1,001 tokens take 63 of 16."""
    shape, h100 = find_shape("llama-3-8b"), find_machine("h100")
    memory = ReplicaMemory(shape, h100.memory, PLAIN, 2048, 256, share=0.9)
    pool = int(0.9 * h100.memory) - weight_bytes(shape) - activation_bytes(shape, PLAIN, 2048, 256)
    assert memory.sequence_bytes(1_001) == 63 * 16 * 131_072
    assert memory.sequences(1_001) == pool // (63 * 16 * 131_072)


def test_knees_with_what_machines_reach() -> None:
    """n* = (η_c · peak) / (η_m · BW) · b_w / 2: less than the ridge, for arithmetic loses more than memory does."""
    h100, by = find_machine("h100"), LOOP
    knee = knee_rows(h100, BF16, compute_efficiency=float(by.eta_c), memory_efficiency=float(by.eta_m))
    assert knee == pytest.approx(h100.ridge() * 0.72 / 0.85)
    assert knee_rows(h100, FP8) == pytest.approx(h100.peak("fp8") / h100.bandwidth / 2)


def test_at_the_knee_reading_and_computing_take_as_long() -> None:
    """The step-time model has its knee there too: what bounds the matrices changes from one row to the next."""
    shape, h100 = find_shape("llama-3-70b"), find_machine("h100")
    rows = round(knee_rows(h100, BF16))

    def bound(by: Constants, count: int) -> bool:
        work = step(shape, [SequenceRows(count, 0, 0)])
        products = work.flops - work.named("attention").flops
        return products / (h100.peak("bf16") * by.eta_c) > work.weight_bytes / (h100.bandwidth * by.eta_m)

    assert not bound(Constants(), rows - 1)
    assert bound(Constants(), rows + 1)


def test_where_keys_and_values_outgrow_the_rest() -> None:
    """B·c = W / kv; c* = 2·P / (ridge · kv), at which both take the same time at peak."""
    shape, h100 = find_shape("llama-3-70b"), find_machine("h100")
    assert batch_tokens_crossover(shape) * kv_bytes_per_token(shape) == pytest.approx(weight_bytes(shape))
    context = context_crossover(shape, h100)
    read = context * kv_bytes_per_token(shape) / h100.bandwidth
    assert read == pytest.approx(2 * matrices("llama-3-70b") / h100.peak("bf16"))


def test_devices_share_the_latency_floor() -> None:
    """Streamed bytes / (N · BW)."""
    shape, h100 = find_shape("llama-3-70b"), find_machine("h100")
    assert latency_floor(weight_bytes(shape), h100, 4) * 1e3 == pytest.approx(42.1 / 4, abs=0.01)
