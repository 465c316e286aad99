"""Simulations of the best few plans, whose tails are measured instead of estimated.

A plan is simulated on its own replicas, on eight of them with their share of the traffic if there are more, with
arrivals of the load. If limits are missed, replicas are added; if they are met, replicas are removed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from twofold.bench.load.base import Load
from twofold.core.errors import TwofoldError
from twofold.core.ranks import nearest_rank
from twofold.planner.plan.evaluate import Candidate
from twofold.planner.plan.plan import CapacityPlan, Choices, Count, Estimate
from twofold.planner.plan.search import Facts, PlanStudy, by_cost, reasons
from twofold.planner.plan.traffic import Slo, Traffic
from twofold.planner.simulate.figures import Floats
from twofold.planner.simulate.fleet import Simulated
from twofold.planner.simulate.jobs import Jobs
from twofold.planner.simulate.scenario import Scenario, Split
from twofold.planner.simulate.setting import EngineSetting, groups_for

MakeLoad: TypeAlias = Callable[[float, int], Load]
"""Makes a load from its rate and its number of requests."""

BEST: Final = 3
"""Plans at the head of the list that are simulated."""
MOST: Final = 6
"""Most simulations for these; as many again for the first plan alone."""
REPLICAS: Final = 8
REQUESTS: Final = 400
"""Least requests of each simulated replica."""
LEAST: Final = 2000
"""Least requests of all replicas together."""
BEYOND: Final = 50
"""Least requests beyond the percentile."""
EDGE: Final = 0.1
"""Share of the requests at the start and at the end that do not count, while replicas fill and empty."""
ROUNDS: Final = 5
"""Most changes of a plan's number of replicas."""


@dataclass(frozen=True, slots=True)
class LatencySamples:
    """(requests,) seconds by measure, of the requests that count."""

    times: Mapping[str, Floats]

    @classmethod
    def of(cls, found: Simulated) -> LatencySamples:
        jobs = found.jobs
        due, first, last = (np.array(column) for column in (jobs.due_s, jobs.first_s, jobs.last_s))
        low, high = np.quantile(due, (EDGE, 1 - EDGE))
        kept = (due >= low) & (due <= high)
        tokens = np.maximum(1, np.array(jobs.output) - 1)
        times = {"ttft": first - due, "tpot": (last - first) / tokens, "e2e": last - due}
        return cls({name: each[kept] for name, each in times.items()})

    def estimate(self, name: str, share: float, before: Estimate) -> Estimate:
        """Mean and percentile by nearest rank, with the floor and the error of the earlier estimate."""
        ascending = np.sort(self.times[name])
        return replace(before, mean=float(ascending.mean()), at=nearest_rank(ascending, share))

    def attained(self, slo: Slo) -> float:
        """The share of the requests within all limits."""
        met = np.ones(len(self.times["ttft"]), bool)
        for name, limit in slo.limits():
            met &= self.times[name] <= limit
        return float(met.mean())


def simulated(
    study: PlanStudy, choices: Choices, traffic: Traffic, slo: Slo, facts: Facts, make: MakeLoad
) -> PlanStudy:
    """The study with its best few plans simulated; plans that the simulator does not support stay estimates."""
    waiting, looked = list(study.plans), list[CapacityPlan]()
    for number in range(2 * MOST):
        first = by_cost([*looked, *waiting])[: BEST if number < MOST else 1]
        plan = next((each for each in first if each in waiting), None)
        if plan is None:
            break
        waiting.remove(plan)
        candidate = Candidate(plan.configuration, traffic, slo, *facts.of(plan.configuration))
        looked += _settled(candidate, plan, make, choices.devices)
    return replace(study, plans=tuple(by_cost([*looked, *waiting])))


def _settled(candidate: Candidate, plan: CapacityPlan, make: MakeLoad, devices: int) -> Iterator[CapacityPlan]:
    """The plan with as many replicas as it needs; nothing if they are too many."""
    if plan.configuration.speculation is not None:
        yield plan
        return
    kept: CapacityPlan | None = None
    tried: set[Count] = set()
    for _ in range(ROUNDS):
        tried.add(plan.count)
        try:
            looked = look(candidate, plan, make)
        except TwofoldError:  # what the simulator does not support stays an estimate
            yield plan
            return
        good = (looked.attained or 0.0) >= candidate.slo.attainment
        if good:
            kept = looked
        count = _fewer(plan.count) if good else _more(candidate, looked)
        following = candidate.plan(count) if count is not None and count not in tried else None
        if following is None or following.devices > devices or (kept is not None and not good):
            break
        plan = following
    if kept is not None:
        yield replace(kept, reasons=tuple(reasons(candidate, kept)))


def look(candidate: Candidate, plan: CapacityPlan, make: MakeLoad) -> CapacityPlan:
    """The plan with simulated times."""
    count, shown = plan.count, min(REPLICAS, plan.count.replicas)
    whole = bool(count.decode)
    part = 1.0 if whole else shown / count.both
    requests = max(REQUESTS * shown, LEAST, math.ceil(BEYOND / (1 - candidate.slo.attainment)))
    jobs = Jobs(make(candidate.traffic.rate * part, requests))
    seen = LatencySamples.of(_scenario(candidate, plan, count.both if whole else shown).run(jobs))
    share = candidate.slo.attainment
    times = {name: seen.estimate(name, share, before) for name, before in plan.estimates().items()}
    return replace(
        plan,
        ttft=times["ttft"],
        tpot=times["tpot"],
        e2e=times["e2e"],
        sure=candidate.sure(times),
        source="simulation",
        attained=seen.attained(candidate.slo),
    )


def _scenario(candidate: Candidate, plan: CapacityPlan, replicas: int) -> Scenario:
    c, count = plan.configuration, plan.count
    rows = max(c.chunk, plan.batch_limit)
    if c.split:
        rows = max(rows, candidate.traffic.longest)
    groups = groups_for(
        c.shape, c.machine, c.how, sequences=plan.batch_limit, rows=rows, memory=float(candidate.memory.room().kv)
    )
    return Scenario(
        shape=c.shape,
        machine=c.machine,
        setting=EngineSetting(groups, sequences=plan.batch_limit, rows=rows),
        how=c.how,
        constants=candidate.constants,
        replicas=max(1, replicas),
        split=Split(count.prefill, count.decode) if c.split else None,
        router="least-loaded",
    )


def _fewer(count: Count) -> Count | None:
    if count.both:
        return Count(both=count.both - 1) if count.both > 1 else None
    if count.decode > 1:
        return Count(prefill=count.prefill, decode=count.decode - 1)
    return Count(prefill=count.prefill - 1, decode=count.decode) if count.prefill > 1 else None


def _more(candidate: Candidate, plan: CapacityPlan) -> Count:
    """One tenth more of the replicas that are short."""
    count = plan.count
    if count.both:
        return Count(both=count.both + max(1, count.both // 10))
    slow = candidate.slo.tpot is not None and plan.tpot.at > candidate.slo.tpot
    if slow:
        return Count(prefill=count.prefill, decode=count.decode + max(1, count.decode // 10))
    return Count(prefill=count.prefill + max(1, count.prefill // 10), decode=count.decode)
