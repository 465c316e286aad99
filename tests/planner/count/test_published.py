"""The figures of the literature that follow from counting alone."""

from __future__ import annotations

import pytest

from tests.planner.count.steps import decode_step, prefill
from tests.planner.laws import latency_floor
from twofold.core.values import BF16, FP8, INT8
from twofold.planner.count.crossover import (
    attention_crossover,
    batch_tokens_crossover,
    context_crossover,
    knee_rows,
)
from twofold.planner.count.memory import (
    ReplicaMemory,
    kv_bytes,
    kv_bytes_per_token,
    parameters,
    streamed_bytes,
    weight_bytes,
)
from twofold.planner.machines.known import find_machine
from twofold.planner.shapes.known import find_shape

GIB = 1 << 30


def test_matrices_of_llama_3_70b() -> None:
    counted = parameters(find_shape("llama-3-70b"))
    assert counted.active == counted.layers == pytest.approx(68.451e9, rel=1e-5)
    assert counted.head == pytest.approx(1.05e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("llama-3-70b", 104_448), ("llama-3-8b", 53_248), ("qwen3-32b", 59_520), ("qwen3-0.6b", 7_680)],
)
def test_prompts_whose_attention_equals_their_matrices(model: str, tokens: int) -> None:
    """Also against the claim that attention dominates past 8 to 32 thousand tokens."""
    shape = find_shape(model)
    assert attention_crossover(shape) == pytest.approx(tokens, rel=1e-6)
    work = prefill(shape, tokens)
    matrices = work.flops - work.named("attention").flops - work.named("head").flops
    assert work.named("attention").flops == pytest.approx(matrices, rel=2e-4)


@pytest.mark.parametrize(
    ("model", "machine", "milliseconds"),
    [
        ("llama-3-70b", "a100-80", 69.2),
        ("llama-3-70b", "h100", 42.1),
        ("llama-3-70b", "h200", 29.4),
        ("llama-3-8b", "h200", 3.35),
    ],
)
def test_latency_floors(model: str, machine: str, milliseconds: float) -> None:
    """The published floors take the whole file; a step leaves the embedding table alone."""
    shape, device = find_shape(model), find_machine(machine)
    assert 1000 * latency_floor(weight_bytes(shape), device) == pytest.approx(milliseconds, abs=0.05)
    assert latency_floor(streamed_bytes(shape), device) < latency_floor(weight_bytes(shape), device)


def test_floor_of_palm_540b_on_64_chips() -> None:
    """Pope et al. 2022: int8 weights, 29 ms a token measured; the floor is 7.0 ms."""
    shape = find_shape("palm-540b").stored_as(INT8, embedding=INT8)
    assert 1000 * latency_floor(streamed_bytes(shape), find_machine("tpu-v4"), 64) == pytest.approx(7.0, abs=0.05)


def test_tokens_in_the_batch_whose_cache_outweighs_the_weights() -> None:
    assert batch_tokens_crossover(find_shape("llama-3-70b")) == pytest.approx(430_626, abs=1)
    assert batch_tokens_crossover(find_shape("llama-3-8b")) == pytest.approx(122_532, abs=1)


def test_contexts_whose_cache_takes_as_long_as_the_matrices() -> None:
    shape = find_shape("llama-3-70b")
    assert context_crossover(shape, find_machine("h100")) == pytest.approx(1415, abs=1)
    assert context_crossover(shape, find_machine("h200")) == pytest.approx(2028, abs=1)


def test_keys_and_values_of_a_token() -> None:
    sizes = {"deepseek-v3": 70_272, "mistral-small-24b": 163_840, "llama-3-70b": 327_680, "llama-3-8b": 131_072}
    assert {name: kv_bytes_per_token(find_shape(name)) for name in sizes} == sizes


def test_the_pool_that_vllm_printed_for_mistral_small() -> None:
    """28.20 GiB of cache, 184,832 tokens."""
    shape = find_shape("mistral-small-24b")
    assert kv_bytes(shape, 184_832) / GIB == pytest.approx(28.20, abs=0.005)
    free = 28.204 * GIB + weight_bytes(shape)
    assert ReplicaMemory(shape, free, share=1.0).longest(1, 1 << 20) == 184_832


def test_the_pool_of_llama_3_8b_on_an_a100() -> None:
    """55.1 GiB at 90 % of 79.15 GiB, with 1.2 GiB for activations and graphs."""
    found = ReplicaMemory(find_shape("llama-3-8b"), 79.15 * GIB, share=0.9).room()
    assert found.kv / GIB - 1.18 == pytest.approx(55.1, abs=0.05)


def test_80_gb_have_no_room_for_llama_3_70b() -> None:
    """Two caches of 128K tokens are 83.9 GB, and the weights alone 141 GB: the claim that both fit is wrong."""
    shape = find_shape("llama-3-70b")
    assert 2 * kv_bytes(shape, 128_000) / 1e9 == pytest.approx(83.9, abs=0.05)
    assert weight_bytes(shape) / 1e9 == pytest.approx(141.1, abs=0.05)
    assert ReplicaMemory(shape, find_machine("h100").memory).sequences(128_000) == 0


def test_knees_of_a_step() -> None:
    """Rows from which a bf16 step is bound by arithmetic are the ridge; half of that, or less, with 8-bit weights."""
    h100 = find_machine("h100")
    assert knee_rows(h100, BF16) == pytest.approx(295.2, abs=0.1)
    assert knee_rows(h100, INT8) == pytest.approx(295.2 / 2, abs=0.1)
    assert knee_rows(h100, FP8) == pytest.approx(h100.ridge("fp8") / 2)


def test_intensity_of_decoding_grows_with_the_batch() -> None:
    shape = find_shape("llama-3-70b")
    alone, many = decode_step(shape, [1]), decode_step(shape, [1] * 64)
    assert alone.intensity == pytest.approx(1.0, rel=0.001)
    assert many.intensity == pytest.approx(64, rel=0.01)
