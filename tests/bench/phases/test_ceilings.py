"""Limits of cases, from made-up machines and well-known models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.models import in_file, spec
from twofold.bench.phases.cases import Decode, Mixed, Prefill, Prefix
from twofold.bench.phases.ceilings import Ceilings
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.core.model import visible

MODEL = spec(4, 256, 512, 4, 2, 64, 1000)
MACHINE = MachineLimits("made up", "avx2", 2, (ReadSpeed(1 << 30, 1e9),), 4e9, 1e9, "2026-01-01T00:00:00+00:00")
CEILINGS = Ceilings(in_file(MODEL), MACHINE, "f16", step_rows=64)
WEIGHTS, TOKEN = CEILINGS.steps.cost.weight_bytes(), 2 * 4 * 2 * 64 * 2
"""Bytes."""
NO_MEMORY = replace(CEILINGS, machine=replace(MACHINE, reads=(ReadSpeed(1 << 30, 1e30),)))
NO_ARITHMETIC = replace(CEILINGS, machine=replace(MACHINE, int8_macs_per_s=1e30, float_macs_per_s=1e30))

sizes = st.integers(1, 500)


def macs(rows: int, logit_rows: int, seen: int) -> float:
    """Multiply-adds: 4 · (2·256·256 + 2·256·128 + 3·256·512) a row, 256 · 1000 for its logits, 2 · 4 · 256 a pair."""
    return rows * 2_359_296 + logit_rows * 256_000 + 2_048 * seen


def test_a_prompt_reads_the_weights_in_each_of_its_steps() -> None:
    assert NO_ARITHMETIC.limit(Prefill(64)).seconds == pytest.approx(WEIGHTS / 1e9)
    assert NO_ARITHMETIC.limit(Prefill(65)).seconds == pytest.approx(2 * WEIGHTS / 1e9)


def test_a_cached_prompt_computes_its_end_and_reads_all_keys_and_values() -> None:
    case = Prefix(500, 10)
    assert NO_MEMORY.limit(case).seconds == pytest.approx(macs(10, 1, visible(490, 10, None)) / 1e9)
    moved = WEIGHTS + 500 * TOKEN
    assert NO_ARITHMETIC.limit(case).seconds == pytest.approx(moved / 1e9)


def test_a_step_is_counted_halfway() -> None:
    assert NO_MEMORY.limit(Decode(3, 100, 21)).seconds == pytest.approx(macs(3, 3, 3 * 111) / 1e9)
    assert NO_ARITHMETIC.limit(Decode(3, 100, 21)).seconds == pytest.approx((WEIGHTS + 333 * TOKEN) / 1e9)


def test_a_mixed_step_holds_its_part_of_the_prompt() -> None:
    case = Mixed(4, 100, 120)  # 60 rows of the prompt in each of two steps
    whole = macs(120, 1, visible(0, 120, None)) + 2 * macs(4, 4, 400)
    assert NO_MEMORY.limit(case).seconds == pytest.approx(whole / 2e9)
    assert NO_ARITHMETIC.limit(case).seconds == pytest.approx((WEIGHTS + 400 * TOKEN) / 1e9)


@given(batch=st.integers(1, 63), context=sizes, tokens=sizes)
def test_a_mixed_step_takes_no_less_than_either_part(batch: int, context: int, tokens: int) -> None:
    case = Mixed(batch, context, tokens)
    steps = case.prompt_steps(64)
    mixed = CEILINGS.limit(case).seconds
    assert mixed * (1 + 1e-9) >= CEILINGS.limit(Decode(batch, context, 0)).seconds
    assert steps * mixed * (1 + 1e-9) >= CEILINGS.limit(Prefill(tokens)).seconds


@given(cached=sizes, new=sizes)
def test_what_is_cached_saves_arithmetic(cached: int, new: int) -> None:
    hit, miss = (NO_MEMORY.limit(case).seconds for case in (Prefix(cached + new, new), Prefill(cached + new)))
    assert hit < miss


def test_the_machine_is_known_by_its_best() -> None:
    now = replace(MACHINE, reads=(ReadSpeed(1 << 30, 5e8),), int8_macs_per_s=5e9)
    assert (min(CEILINGS.ratios(now)), max(CEILINGS.ratios(now))) == (0.5, 1.25)
    raised = CEILINGS.raised(now).machine
    assert (raised.reads[0].bytes_per_s, raised.int8_macs_per_s, raised.float_macs_per_s) == (1e9, 5e9, 1e9)


def test_sizes_that_only_one_measurement_has_are_no_pace() -> None:
    now = replace(MACHINE, reads=(ReadSpeed(1 << 20, 1.0),))
    assert set(CEILINGS.ratios(now)) == {1.0}
