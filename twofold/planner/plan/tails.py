"""Simulations of the best few plans: their latency percentiles replace the estimates.

A plan is simulated with the arrivals of the load, on its own replicas or on eight of them with their share of the
traffic. If limits are missed, replicas are added; if they are met, replicas are removed."""

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
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.simulate.figures import Floats, per_token
from twofold.planner.simulate.fleet import Simulated
from twofold.planner.simulate.jobs import Jobs
from twofold.planner.simulate.lever_steps import SimulatedDrafts
from twofold.planner.simulate.scenario import Scenario, Split
from twofold.planner.simulate.setting import EngineSetting, groups_for

MakeLoad: TypeAlias = Callable[[float, int], Load]
"""Makes a load from its rate and its number of requests."""

BEST: Final = 3
"""Number of plans to simulate, the cheapest first."""
MAX_PLANS: Final = 6
"""Maximum of plans that are simulated to find these; as many again until the cheapest plan is simulated."""
REPLICAS: Final = 8
"""Maximum of simulated replicas that run both phases."""
REQUESTS: Final = 400
"""Minimum requests of each simulated replica."""
MIN_REQUESTS: Final = 2000
MIN_BEYOND: Final = 50
"""Minimum requests beyond the percentile."""
EDGE: Final = 0.1
"""Share of the requests at the start and at the end that do not count, while replicas fill and empty."""
ROUNDS: Final = 5
"""Maximum of numbers of replicas that are simulated for a plan."""


@dataclass(frozen=True, slots=True)
class LatencySamples:
    """(requests,) seconds by measure, for the requests that count; infinite if one was refused."""

    times: Mapping[str, Floats]

    @classmethod
    def of(cls, found: Simulated) -> LatencySamples:
        jobs = found.jobs
        due, first, last = (np.array(column) for column in (jobs.due_s, jobs.first_s, jobs.last_s))
        low, high = np.quantile(due, (EDGE, 1 - EDGE))
        kept = (due >= low) & (due <= high)
        tpot = np.nan_to_num(per_token(jobs), nan=0.0, posinf=np.inf)
        times = {"ttft": first - due, "tpot": tpot, "e2e": last - due}
        return cls({name: each[kept] for name, each in times.items()})

    def estimate(self, name: str, share: float, before: Estimate) -> Estimate:
        """Mean and percentile by nearest rank, with the floor and the error of the earlier estimate."""
        ascending = np.sort(self.times[name])
        return replace(before, mean=float(ascending.mean()), at=nearest_rank(ascending, share))

    def attained(self, slo: PlanSlo) -> float:
        """The share of the requests that ended within all limits."""
        met = np.isfinite(self.times["e2e"])
        for name, limit in slo.limits():
            met &= self.times[name] <= limit
        return float(met.mean())


def simulated(
    study: PlanStudy, choices: Choices, traffic: Traffic, slo: PlanSlo, facts: Facts, make: MakeLoad
) -> PlanStudy:
    """The study with its best few plans simulated; plans that the simulator does not support stay estimates."""
    estimated, done = list(study.plans), list[CapacityPlan]()
    for number in range(2 * MAX_PLANS):
        first = by_cost([*done, *estimated])[: BEST if number < MAX_PLANS else 1]
        plan = next((each for each in first if each in estimated), None)
        if plan is None:
            break
        estimated.remove(plan)
        candidate = Candidate(plan.configuration, traffic, slo, *facts.of(plan.configuration))
        done += _corrected(candidate, plan, make, choices.devices)
    return replace(study, plans=tuple(by_cost([*done, *estimated])))


def _corrected(candidate: Candidate, plan: CapacityPlan, make: MakeLoad, devices: int) -> Iterator[CapacityPlan]:
    """The plan with as many replicas as it needs by simulation; nothing if it needs more than ``devices`` devices."""
    kept: CapacityPlan | None = None
    tried: set[Count] = set()
    for _ in range(ROUNDS):
        tried.add(plan.count)
        try:
            found = simulated_plan(candidate, plan, make)
        except TwofoldError:  # the simulator does not support this plan, so it stays an estimate
            yield plan
            return
        good = (found.attained or 0.0) >= candidate.slo.attainment
        if good:
            kept = found
        count = _fewer(plan.count) if good else _more(candidate, found)
        following = candidate.plan(count) if count is not None and count not in tried else None
        if following is None or following.devices > devices or (kept is not None and not good):
            break
        plan = following
    if kept is not None:
        yield replace(kept, reasons=tuple(reasons(candidate, kept)))


def simulated_plan(candidate: Candidate, plan: CapacityPlan, make: MakeLoad) -> CapacityPlan:
    """The plan with simulated times. Raises TwofoldError if the simulator does not support it."""
    count, replicas = plan.count, min(REPLICAS, plan.count.replicas)
    part = replicas / count.both if count.both else 1.0
    share = candidate.slo.attainment
    requests = max(REQUESTS * replicas, MIN_REQUESTS, math.ceil(MIN_BEYOND / (1 - share)))
    jobs = Jobs(make(candidate.traffic.rate * part, requests))
    seen = LatencySamples.of(_scenario(candidate, plan, replicas).run(jobs))
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
    c, count, drafting = plan.configuration, plan.count, plan.configuration.speculation
    rows = max(c.chunk, plan.batch_limit)
    if c.split:
        rows = max(rows, candidate.traffic.longest)
    groups = groups_for(
        c.shape,
        c.machine,
        c.setup,
        sequences=plan.batch_limit,
        rows=rows,
        memory=float(candidate.memory.room().kv),
        draft=drafting.draft if drafting else None,
    )
    drafts = SimulatedDrafts(drafting.acceptance, drafting.drafts, drafting.draft) if drafting else None
    return Scenario(
        shape=c.shape,
        machine=c.machine,
        setting=EngineSetting(groups, sequences=plan.batch_limit, rows=rows),
        setup=c.setup,
        constants=candidate.constants,
        replicas=replicas,
        split=Split(count.prefill, count.decode) if c.split else None,
        router="least-loaded",
        drafts=drafts,
    )


def _fewer(count: Count) -> Count | None:
    if count.both:
        return Count(both=count.both - 1) if count.both > 1 else None
    if count.decode > 1:
        return Count(prefill=count.prefill, decode=count.decode - 1)
    return Count(prefill=count.prefill - 1, decode=count.decode) if count.prefill > 1 else None


def _more(candidate: Candidate, plan: CapacityPlan) -> Count:
    """A tenth more replicas, of the phase that misses its limit; decode replicas if only E2E misses its limit."""
    count = plan.count
    if count.both:
        return Count(both=count.both + max(1, count.both // 10))
    missed = {name for name, limit in candidate.slo.limits() if plan.estimates()[name].at > limit}
    if "tpot" in missed or missed == {"e2e"}:
        return Count(prefill=count.prefill, decode=count.decode + max(1, count.decode // 10))
    return Count(prefill=count.prefill + max(1, count.prefill // 10), decode=count.decode)
