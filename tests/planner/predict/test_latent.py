"""Latent attention of prompts: one count, for whole steps and for those that predict many."""

from __future__ import annotations

import pytest

from tests.planner.plan.support import FACTS, choices, steady
from twofold.core.values import FP8
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows, step
from twofold.planner.machines.known import find_machine
from twofold.planner.plan.search import search
from twofold.planner.plan.traffic import PlanSlo
from twofold.planner.predict.steps import Demand, StepPredictor
from twofold.planner.shapes.known import find_shape

TP8 = Setting(tp=8)


@pytest.mark.parametrize(
    "span", [SequenceRows(32_000), SequenceRows(512, 31_488), SequenceRows(8, 31_000), SequenceRows(1, 31_999)]
)
def test_steps_are_those_that_are_counted(span: SequenceRows) -> None:
    shape, machine = find_shape("deepseek-v3").stored_as(FP8), find_machine("h200")
    counted = Demand.of(step(shape, [span], setup=TP8), machine, layers=len(shape.layers), sequences=1, setup=TP8)
    found = StepPredictor.of(shape, machine, TP8).demand([(1, span)])
    assert found.matrices == pytest.approx(counted.matrices, rel=1e-9)
    assert found.attention == pytest.approx(counted.attention, rel=1e-9)
    assert found.floor == pytest.approx(counted.floor, rel=1e-9)


def test_a_long_prompt_is_expanded() -> None:
    """640 FLOPs a pair and head, of 128 nope, 64 rope and 128 value dimensions: absorbed it would be 2,176."""
    shape, machine = find_shape("deepseek-v3"), find_machine("h200")
    pairs = 32_000 * 32_001 // 2
    found = StepPredictor.of(shape, machine, TP8).prefill(32_000)
    assert found.attention == pytest.approx(640 * pairs * 61 * 16 / machine.peak("bf16"), rel=1e-9)


def test_a_plan_does_not_refuse_what_is_possible() -> None:
    """Absorbed, the floor of such a prompt would be 1.33 s."""
    asked = choices("deepseek-v3", "h200", tp=(8,), weights=(FP8,), kv=(FP8,), chunks=(32_768,), split=False)
    study = search(asked, steady(0.05, 32_000, 100), PlanSlo(ttft=1.2), FACTS)
    assert [each.bound for each in study.refusals] == ["alone"], "a server of today is too slow, the machine is not"
    assert search(asked, steady(0.05, 32_000, 100), PlanSlo(ttft=3.0), FACTS).plans
