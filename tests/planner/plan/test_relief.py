"""No plan meets the limits: the error names the bound that is exceeded, and what meets them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.plan.support import FACTS, choices, steady
from twofold.core.errors import ParameterError
from twofold.core.values import BF16
from twofold.planner.plan.search import nothing_found, search
from twofold.planner.plan.traffic import PlanSlo, Traffic


def forbidden(slo: PlanSlo, traffic: Traffic, *names: str, **others: Any) -> ParameterError:
    asked = choices(*names, **others)
    study = search(asked, traffic, slo, FACTS)
    assert not study.plans
    return nothing_found(study, asked, traffic, slo, FACTS)


def test_the_latency_floor_alone_is_42_ms() -> None:
    """Llama-3-70B in bf16 on one H100: 141 GB at 3.35 TB/s. The embedding is looked up and not streamed."""
    error = forbidden(PlanSlo(tpot=0.03), steady(), "llama-3-70b", weights=(None,), tp=(1,), kv=(BF16,))
    assert "the floor of TPOT is 41.6 ms" in str(error)
    assert "139.0 GB of weights at 1 × 3.35 TB/s" in str(error)
    assert error.hint is not None
    assert "fp8 weights on 1×h100" in error.hint
    assert "bf16 weights on 2×h100" in error.hint


def test_a_prompt_cannot_be_faster_than_the_peak() -> None:
    error = forbidden(PlanSlo(ttft=0.003), steady(1.0, 4000), "llama-3-8b")
    assert "the floor of TTFT" in str(error)
    assert "a prompt of 4,000 tokens at the peak of" in str(error)


def test_limits_that_no_machine_meets() -> None:
    error = forbidden(PlanSlo(tpot=1e-5), steady(), "llama-3-70b")
    assert error.hint is not None
    assert "Nothing in the table" in error.hint


def test_a_model_that_does_not_fit() -> None:
    error = forbidden(PlanSlo(tpot=1.0), steady(), "llama-3-70b", "l4", tp=(1,), weights=(None,))
    assert "leave no room" in str(error)
    assert error.hint is not None
    assert "h100" in error.hint or "l4" in error.hint


def test_too_few_devices_say_how_many() -> None:
    error = forbidden(PlanSlo(ttft=1.0, tpot=0.05), steady(200.0), "llama-3-70b", devices=2)
    assert "2 devices" in str(error)
    assert error.hint is not None
    assert "It would take" in error.hint


def test_a_limit_above_the_floor_may_be_too_short_for_an_idle_replica() -> None:
    """A limit between the floor of a step and the predicted seconds of a step."""
    slo = PlanSlo(tpot=0.006)
    error = forbidden(slo, steady(), "llama-3-8b", "h100", weights=(None,), tp=(1,), kv=(BF16,))
    assert "on an idle replica" in str(error)


@pytest.mark.parametrize("attainment", [0.0, 0.3, 1.0])
def test_attainments_that_cannot_be_planned_for(attainment: float) -> None:
    with pytest.raises(ParameterError, match="attainment"):
        PlanSlo(tpot=0.1, attainment=attainment)
