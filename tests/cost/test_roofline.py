"""Shares of a made-up machine's limits."""

from __future__ import annotations

import pytest

from tests.cost.models import SMOLLM2_135M, tensors
from twofold.cost.machine import MachineLimits, ReadSpeed
from twofold.cost.model import ModelCost
from twofold.cost.roofline import PhaseLimit, decode_limit, prefill_limit

MACHINE = MachineLimits(
    "made up", "avx512", 2, (ReadSpeed(1 << 20, 200e9), ReadSpeed(1 << 30, 10e9)), 1e12, 1e11, "2026-01-01T00:00:00"
)
COST = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))


def test_decode_is_bound_by_memory() -> None:
    """Two steps at contexts 11 and 12."""
    limit = decode_limit(COST, MACHINE, prompt=10, tokens=3)
    assert limit.bound == "memory"
    assert limit.seconds == pytest.approx((2 * COST.weight_bytes + 23 * 23_040) / 10e9)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    limit = prefill_limit(COST, MACHINE, 512)
    attention = 2 * 576 * 30 * 512 * 513 // 2
    assert limit.bound == "arithmetic"
    assert limit.seconds == pytest.approx((512 * 106_168_320 + 28_311_552) / 1e12 + attention / 1e11)


def test_a_short_prompt_is_bound_by_memory() -> None:
    assert prefill_limit(COST, MACHINE, 1) == PhaseLimit(COST.weight_bytes / 10e9, "memory")


def test_each_chunk_reads_the_weights_again() -> None:
    once, thrice = (prefill_limit(COST, MACHINE, 3, chunk=chunk) for chunk in (3, 1))
    assert thrice.seconds == pytest.approx(3 * once.seconds)


def test_cached_tokens_cost_only_attention() -> None:
    fresh, after = prefill_limit(COST, MACHINE, 512), prefill_limit(COST, MACHINE, 512, cached=1000)
    assert after.seconds - fresh.seconds == pytest.approx(2 * 576 * 30 * 512 * 1000 / 1e11)


def test_shares() -> None:
    assert PhaseLimit(0.75, "memory").share(1.0) == 0.75
    assert PhaseLimit(0.75, "memory").share(0.0) is None
    assert decode_limit(COST, MACHINE, prompt=10, tokens=1).share(0.1) is None
