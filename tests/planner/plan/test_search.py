"""The search: fewest replicas, cheapest first, nothing below the floor, and how much work it does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.plan.support import FACTS, candidate, choices, configuration, steady
from twofold.core.errors import ParameterError
from twofold.core.values import BF16, FP8
from twofold.planner.plan.plan import CapacityPlan, Count
from twofold.planner.plan.search import Facts, SearchPoint, frontier, search, smallest_plan
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.steps import StepPredictor

SLO = PlanSlo(ttft=1.0, tpot=0.05)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.1, 200),
    st.integers(16, 6000),
    st.integers(2, 800),
    st.floats(0.02, 0.2),
    st.floats(0.2, 3),
    st.booleans(),
)
def test_one_replica_fewer_is_too_few(
    rate: float, prompt: int, output: int, tpot: float, ttft: float, split: bool
) -> None:
    slo = PlanSlo(ttft=ttft, tpot=tpot, attainment=0.9)
    asked = candidate(configuration(split=split), steady(rate, prompt, output), slo)
    found = smallest_plan(asked, 4096)
    if not isinstance(found, CapacityPlan):
        assert found.why
        return
    assert asked.meets(found)
    count = found.count
    fewer = [Count(count.both - 1)] if count.both > 1 else []
    if count.prefill > 1:
        fewer.append(Count(prefill=count.prefill - 1, decode=count.decode))
    if count.decode > 1:
        fewer.append(Count(prefill=count.prefill, decode=count.decode - 1))
    for each in fewer:
        worse = asked.plan(each)
        assert worse is None or not asked.meets(worse)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 100), st.integers(1, 6000), st.integers(2, 800), st.booleans(), st.integers(1, 30))
def test_no_estimate_is_below_the_floor(rate: float, prompt: int, output: int, split: bool, replicas: int) -> None:
    asked = candidate(configuration(split=split), steady(rate, prompt, output), SLO)
    found = asked.plan(Count(prefill=replicas, decode=replicas) if split else Count(replicas))
    if found is not None:
        for each in found.estimates().values():
            assert each.floor <= each.mean
            assert each.floor <= each.at
        band = found.tpot.band
        assert band is not None
        assert found.tpot.floor <= band[0] <= found.tpot.at <= band[1]
        assert found.ttft.band is None, "it was not measured with random arrivals"


def test_more_load_is_never_faster() -> None:
    slow = PlanSlo(ttft=100, tpot=10)
    times = []
    for rate in (1, 2, 4, 8, 12, 16):
        plan = candidate(configuration(), steady(rate), slow).plan(Count(1))
        if plan is not None:
            times.append((plan.ttft.at, plan.tpot.at, plan.batch))
    assert len(times) > 3
    for column in zip(*times, strict=True):
        assert list(column) == sorted(column)


def test_plans_keep_the_limits_and_come_cheapest_first() -> None:
    study = search(choices("llama-3-8b", "h100", "h200", "l40s", chunks=(2048,)), steady(40.0), SLO, FACTS)
    costs = [plan.cost or 0.0 for plan in study.plans]
    assert costs == sorted(costs)
    assert len(study.plans) > 3
    for plan in study.plans:
        assert plan.ttft.at <= 1.0
        assert plan.tpot.at <= 0.05
        assert plan.devices == plan.count.replicas * plan.configuration.tp
        assert plan.batch_limit <= plan.sequences
        assert plan.reasons


def test_sure_plans_meet_the_limits_at_the_upper_end_of_the_error() -> None:
    for plan in search(choices(), steady(40.0), PlanSlo(tpot=0.02), FACTS).plans:
        band = plan.tpot.band
        assert plan.sure == (None if band is None else band[1] <= 0.02), "int4 was not measured"
    assert all(plan.sure is None for plan in search(choices(), steady(40.0), SLO, FACTS).plans)


def test_errors_that_were_not_measured_are_unknown() -> None:
    study = search(choices("llama-3.2-1b", "xeon-8480", tp=(1,)), steady(0.5), PlanSlo(tpot=0.5), FACTS)
    assert study.plans
    assert all(plan.sure is None and plan.tpot.band is None for plan in study.plans)


def test_one_machine_without_a_price_is_counted_in_devices() -> None:
    study = search(choices("llama-3-8b", "b200"), steady(40.0), SLO, FACTS)
    assert all(plan.cost is None for plan in study.plans)
    devices = [plan.devices for plan in study.plans]
    assert devices == sorted(devices)


def test_machines_without_prices_cannot_be_compared() -> None:
    with pytest.raises(ParameterError, match="The price of b200"):
        search(choices("llama-3-8b", "b200", "h100"), steady(), SLO, FACTS)
    priced = Facts(prices={"b200": 6.0})
    assert search(choices("llama-3-8b", "b200", "h100", tp=(1,)), steady(), SLO, priced).plans


def test_no_plan_has_more_devices_than_allowed() -> None:
    study = search(choices(devices=3), steady(60.0), SLO, FACTS)
    assert all(plan.devices <= 3 for plan in study.plans)
    assert any(refusal.bound == "devices" for refusal in study.refusals)


def test_memory_forbids_what_does_not_fit() -> None:
    study = search(choices("llama-3-70b", weights=(None,), kv=(BF16,)), steady(), SLO, FACTS)
    alone = [each for each in study.refusals if each.configuration.tp == 1]
    assert {each.bound for each in alone} == {"memory"}
    assert "141.1 GB of weights" in alone[0].why


def test_prefix_caching_needs_fewer_devices() -> None:
    """Half of each prompt cached is half of the prefill."""
    cold = search(choices(tp=(1,)), steady(60.0, 6000, 100), PlanSlo(ttft=2.0), FACTS).plans[0]
    warm = search(choices(tp=(1,)), steady(60.0, 6000, 100, cached=5000), PlanSlo(ttft=2.0), FACTS).plans[0]
    assert warm.devices < cold.devices


def test_long_prompts_with_a_tight_tpot_are_split() -> None:
    """If prompts delay decoding, separate replicas are cheaper (DistServe, Zhong et al. 2024)."""
    traffic = steady(20.0, 8000, 200)
    slo = PlanSlo(ttft=2.0, tpot=0.015, attainment=0.99)
    best = search(choices(weights=(None,), kv=(BF16,), chunks=(8192,), tp=(1,)), traffic, slo, FACTS).plans[0]
    assert best.configuration.split


def test_every_bound_is_a_reason() -> None:
    study = search(choices("llama-3-70b"), steady(30.0), SLO, FACTS)
    text = " ".join(study.plans[0].reasons)
    assert "dominated by" in text
    assert "GB of weights" in text
    assert "quality" in text


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(1, 100)), min_size=1, max_size=40))
def test_nothing_on_the_frontier_is_beaten(pairs: list[tuple[float, float]]) -> None:
    points = [SearchPoint("x", Count(1), tpot, cost, True) for tpot, cost in pairs]
    kept = frontier(points)
    for point in kept:
        assert not any(other.tpot < 0.99 * point.tpot and other.cost <= point.cost for other in points)
    assert [each.cost for each in kept] == sorted(each.cost for each in kept)
    assert [each.tpot for each in kept] == sorted((each.tpot for each in kept), reverse=True)


def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yields the number of steps predicted so far."""
    steps = 0
    demand = StepPredictor.demand

    def counting(self: StepPredictor, spans: object) -> object:
        nonlocal steps
        steps += 1
        return demand(self, spans)  # type: ignore[arg-type]

    monkeypatch.setattr(StepPredictor, "demand", counting)
    while True:
        yield steps


def test_500_configurations_are_a_few_seconds_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes some 10 µs to predict: less than a thousand of them for each configuration are 5 s for 500."""
    counter = _counted(monkeypatch)
    next(counter)
    requests = [(200 + 37 * n % 4000, 0, 20 + 13 * n % 500) for n in range(500)]
    traffic = Traffic.of_requests(20.0, requests)
    study = search(choices("llama-3-70b", "h100", chunks=(512,), tp=(2, 4), kv=(FP8,)), traffic, SLO, FACTS)
    assert study.plans
    assert next(counter) < 1000 * study.tried


def test_infinite_waits_meet_nothing() -> None:
    asked = candidate(configuration(split=True), steady(50.0, 8000), SLO)
    found = asked.plan(Count(prefill=1, decode=100))
    assert found is None or math.isinf(found.ttft.at)
