"""Routers on a part of Mooncake's trace: the order of the whole trace, which docs/fleet.md has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from twofold.bench.load.replay import TracePart, TraceReplay, TraceScale
from twofold.bench.load.trace import read_trace
from twofold.core.errors import ParameterError
from twofold.planner.machines.known import find_machine
from twofold.planner.plan.traffic import PlanSlo
from twofold.planner.shapes.known import resolve_shape
from twofold.planner.simulate.figures import SimulatedFigures, figures
from twofold.planner.simulate.jobs import Jobs, prompt_history
from twofold.planner.simulate.scenario import Scenario
from twofold.planner.simulate.setting import EngineSetting, groups_for

SHAPE, MACHINE, SLO = resolve_shape("llama-3.1-8b"), find_machine("h100"), PlanSlo(ttft=2.0, tpot=0.05, attainment=0.9)


def scenario(router: str, replicas: int = 8, machine: str = "h100", error: float = 0.0) -> Scenario:
    found = find_machine(machine)
    setting = EngineSetting(groups_for(SHAPE, found), context=SHAPE.context_length)
    return Scenario(shape=SHAPE, machine=found, setting=setting, replicas=replicas, router=router, error=error)


def ran(test_data: Path, scenario: Scenario, rate: float) -> SimulatedFigures:
    trace = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")
    part, scale = TracePart(0.0, None, 400), TraceScale(1.0, rate)
    found = figures(scenario.run(Jobs(TraceReplay(trace, prompt_history, part=part, scale=scale, max_open=None))), SLO)
    assert found.requests == 400
    return found


@pytest.mark.data
def test_work_counts_more_than_caches_and_caches_more_than_requests(test_data: Path) -> None:
    found = [
        ran(test_data, scenario(router), 12.0)
        for router in ("round-robin", "least-loaded", "longest-match", "predicted")
    ]
    met = [each.goodput.attainment for each in found if each.goodput]
    assert met == sorted(met)
    assert met[-1] > met[-2] + 0.05
    assert found[2].cached_share > 1.5 * found[1].cached_share, "longest match is for caches"


@pytest.mark.data
def test_predictions_may_be_wrong_by_a_third(test_data: Path) -> None:
    right, wrong, other = (
        ran(test_data, each, 12.0)
        for each in (scenario("predicted"), scenario("predicted", error=0.35), scenario("longest-match"))
    )
    assert right.ttft.p90 is not None
    assert wrong.ttft.p90 is not None
    assert other.ttft.p90 is not None
    assert right.ttft.p90 != wrong.ttft.p90
    assert wrong.ttft.p90 < 0.7 * other.ttft.p90


@pytest.mark.data
def test_machines_of_different_speed_share_by_their_models(test_data: Path) -> None:
    """Two fast machines and two slow ones: counting requests overloads the slow ones."""
    found = {}
    for router in ("least-loaded", "predicted"):
        mixed = replace(scenario(router, 2), others=(scenario(router, 2, "l40s"),))
        found[router] = ran(test_data, mixed, 2.0)
        assert found[router].usage["replicas"].replicas == 4
    assert found["predicted"].ttft.p90 is not None
    assert found["least-loaded"].ttft.p90 is not None
    assert found["predicted"].ttft.p90 < 0.7 * found["least-loaded"].ttft.p90


@pytest.mark.parametrize(("router", "error"), [("least-loaded", 0.3), ("predicted", -0.1), ("predicted", float("nan"))])
def test_an_error_needs_predictions(router: str, error: float) -> None:
    with pytest.raises(ParameterError, match="An error of predictions must be from 0 to 10"):
        scenario(router, error=error)
