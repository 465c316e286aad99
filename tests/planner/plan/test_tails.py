"""Estimates of tails against the simulator, and plans that it corrects."""

from __future__ import annotations

import pytest

from tests.planner.plan.support import FACTS, candidate, choices, configuration
from tests.planner.simulate.support import linear, setting_with
from twofold.bench.load.base import Load
from twofold.bench.load.lengths import Lengths, parse_lengths
from twofold.bench.load.synthetic import LoadPlan
from twofold.core.values import BF16
from twofold.fleet.routing.router import RoundRobin
from twofold.planner.plan.plan import CapacityPlan, Count
from twofold.planner.plan.search import PlanStudy, search
from twofold.planner.plan.tails import BEST, LatencySamples, MakeLoad, simulated, simulated_plan
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.fleet import simulate
from twofold.planner.simulate.jobs import IndependentJobs, SimulatedJob, prompt_history

MIXED = ("lognormal:1500,0.8,8000", "lognormal:250,0.6,2000")


def loads(prompts: str, outputs: str) -> MakeLoad:
    lengths: tuple[Lengths, Lengths] = parse_lengths(prompts, "x"), parse_lengths(outputs, "y")

    def make(rate: float, requests: int) -> Load:
        plan = LoadPlan(rate=rate, requests=requests, input_tokens=lengths[0], output_tokens=lengths[1])
        return plan.load(prompt_history, 0)

    return make


@pytest.mark.parametrize("attainment", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("split", [False, True], ids=["both", "split"])
@pytest.mark.parametrize("lengths", [("512", "128"), MIXED], ids=["equal", "mixed"])
def test_estimates_are_near_what_a_simulation_shows(attainment: float, split: bool, lengths: tuple[str, str]) -> None:
    """At half of a replica's maximum rate; near it, no estimate from two moments predicts the queues."""
    make, slo = loads(*lengths), PlanSlo(ttft=9.0, tpot=9.0, attainment=attainment)
    idle = candidate(configuration(split=split), Traffic.of(make(1.0, 4000), 1.0), slo)
    rate = 0.5 * (1 / idle.traffic.mean(idle.prompt_s) if split else idle.curve.max_rate)
    asked = candidate(configuration(split=split), Traffic.of(make(rate, 4000), rate), slo)
    plan = asked.plan(Count(prefill=1, decode=1) if split else Count(1))
    assert plan is not None
    seen = simulated_plan(asked, plan, make)
    assert seen.source == "simulation"
    assert seen.ttft.mean == pytest.approx(plan.ttft.mean, rel=0.25)
    assert seen.tpot.mean == pytest.approx(plan.tpot.mean, rel=0.15)
    assert seen.ttft.at == pytest.approx(plan.ttft.at, rel=0.35)
    assert seen.tpot.at == pytest.approx(plan.tpot.at, rel=0.35)
    assert seen.attained == 1.0


def test_the_best_plans_are_simulated_and_meet_the_limits() -> None:
    make, slo = loads(*MIXED), PlanSlo(ttft=0.5, tpot=0.03)
    traffic = Traffic.of(make(20.0, 4000), 20.0)
    asked = choices("llama-3-8b", "h100", weights=(None,), kv=(BF16,), tp=(1, 2))
    before = search(asked, traffic, slo, FACTS)
    found = simulated(before, asked, traffic, slo, FACTS, make)
    assert [plan.source for plan in found.plans[:BEST]] == ["simulation"] * min(BEST, len(found.plans))
    for plan in found.plans[:BEST]:
        assert plan.attained is not None
        assert plan.attained >= slo.attainment
        assert plan.reasons
    costs = [plan.cost or 0 for plan in found.plans]
    assert costs == sorted(costs)


def test_a_plan_that_misses_limits_in_the_simulation_gets_more_replicas() -> None:
    make, slo = loads(*MIXED), PlanSlo(ttft=0.3, tpot=0.012)
    traffic = Traffic.of(make(20.0, 4000), 20.0)
    asked = choices("llama-3-8b", "h100", weights=(None,), kv=(BF16,), tp=(1,), chunks=(2048,), split=False)
    study = search(asked, traffic, slo, FACTS)
    own = candidate(study.plans[0].configuration, traffic, slo)
    fewer = own.plan(Count(study.plans[0].count.both - 1))
    assert isinstance(fewer, CapacityPlan)
    assert (simulated_plan(own, fewer, make).attained or 0.0) < slo.attainment
    wrong = PlanStudy((fewer,), (), (), 1)
    (found,) = simulated(wrong, asked, traffic, slo, FACTS, make).plans
    assert found.attained is not None
    assert found.attained >= slo.attainment


def test_a_split_plan_that_misses_only_e2e_gets_more_decode_replicas() -> None:
    make, slo = loads("512", "256"), PlanSlo(e2e=3.0)
    asked = choices("llama-3-8b", "h100", weights=(None,), kv=(BF16,), tp=(1,), chunks=(2048,))
    own = candidate(configuration(split=True), Traffic.of(make(40.0, 4000), 40.0), slo)
    few = own.plan(Count(prefill=1, decode=1))
    assert few is not None
    (found,) = simulated(PlanStudy((few,), (), (), 1), asked, own.traffic, slo, FACTS, make).plans
    assert found.count == Count(prefill=1, decode=2)


@pytest.mark.parametrize("slo", [PlanSlo(ttft=9.0), PlanSlo(tpot=9.0), PlanSlo(e2e=9.0)], ids=["ttft", "tpot", "e2e"])
@pytest.mark.parametrize("output", [1, 16])
def test_a_refused_request_is_infinitely_slow_and_misses_every_limit(slo: PlanSlo, output: int) -> None:
    prompts = [64] * 5 + [5000] + [64] * 5
    jobs = [SimulatedJob(n, 0.1 * n, prompt, output, stream=n) for n, prompt in enumerate(prompts)]
    replica = FastReplica(setting_with(context=4000), linear)
    found = LatencySamples.of(simulate(IndependentJobs(jobs), [replica], RoundRobin()))
    assert max(found.times["ttft"]) == max(found.times["e2e"]) == float("inf")
    assert found.attained(slo) == pytest.approx(8 / 9)
