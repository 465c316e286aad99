"""Cost of planning and committing a step while requests wait.

No model runs: step outcomes are synthetic. 32 sequences generate while the others wait; as each one finishes, a waiting
one is admitted.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.setting import Setting
from twofold.bench.phases.cases import Decode
from twofold.core.params import SamplingParams
from twofold.core.ranks import nearest_rank
from twofold.core.record import SequenceRecord
from twofold.core.request import RequestOptions
from twofold.core.step import SequenceOutcome, StepOutcome, StepPlan
from twofold.engine.kv.manager import BlockManager, GroupSize
from twofold.engine.scheduler.budget import LiveBudget, StepLimits
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepTimeModel
from twofold.planner.simulate.setting import SIMULATED

WAITING = (10, 1_000, 10_000)
SEQUENCES, PROMPT, ANSWER = 32, 64, 64
STEP_S = 0.02
BLOCK_SIZE = 16


def run(setting: Setting) -> dict[str, Any]:
    steps = 50 if setting.quick else 1_000
    print(f"\nqueue  µs to plan and commit a step of {SEQUENCES} sequences, by number of waiting requests")
    floor = setting.floor(Decode(SEQUENCES, PROMPT, ANSWER))
    print(
        f"  limit: such a step takes at least {floor * 1e6:,.0f} µs; the goal allows 8 % overhead",
        flush=True,
    )
    table = {waiting: _steps(waiting, steps) for waiting in WAITING}
    for waiting, row in table.items():
        print(f"  {waiting:6d} waiting  P50 {row['p50_s'] * 1e6:6.0f}  P99 {row['p99_s'] * 1e6:6.0f}", flush=True)
    growth = table[WAITING[-1]]["p50_s"] / table[WAITING[0]]["p50_s"]
    print(f"  {WAITING[-1]} waiting cost {growth:.2f}× of {WAITING[0]}")
    return {"plan_commit": {str(waiting): row for waiting, row in table.items()}, "growth": growth}


def _steps(waiting: int, steps: int) -> dict[str, float]:
    """P50 and P99 seconds of plan and commit with about ``waiting`` queued requests; finished ones are replaced."""
    scheduler = make_scheduler()
    number, now, costs = 0, 0.0, []
    for step in range(steps + 2 * ANSWER):
        while scheduler.waiting < waiting + (SEQUENCES if not step else 0):
            scheduler.add(make_sequence(number, now), now)
            number += 1
        began = time.perf_counter()
        plan = scheduler.plan(now)
        planned = time.perf_counter()
        outcome = outcome_of(plan)
        now += STEP_S
        committing = time.perf_counter()
        scheduler.commit(plan, outcome, now)
        costs.append(planned - began + time.perf_counter() - committing)
    steady = sorted(costs[2 * ANSWER :])
    return {"p50_s": nearest_rank(steady, 0.5), "p99_s": nearest_rank(steady, 0.99)}


def make_scheduler() -> Scheduler:
    """A scheduler of SEQUENCES running sequences."""
    model = StepTimeModel(SIMULATED)
    manager = BlockManager([GroupSize(None, 4 * SEQUENCES * (PROMPT + ANSWER) // BLOCK_SIZE)], BLOCK_SIZE)
    limits = StepLimits(SEQUENCES, 512, SEQUENCES)
    return Scheduler(manager, limits, budget=LiveBudget(model, 2 * STEP_S), step_time=model)


def make_sequence(number: int, now: float) -> Sequence:
    """A sequence with one of three priorities and seven tenants.

    Output lengths differ, so sequences finish one by one.
    """
    answer = ANSWER // 2 + number % (ANSWER // 2)
    return Sequence(
        number,
        [1 + number % 1_000, *range(PROMPT - 1)],
        SamplingParams(max_tokens=answer),
        seed=number,
        limit=PROMPT + answer,
        options=RequestOptions(priority=number % 3, tenant=f"tenant-{number % 7}"),
        arrival=now,
        record=SequenceRecord(),
    )


def outcome_of(plan: StepPlan) -> StepOutcome:
    """An outcome that samples a token for each sequence."""
    outcomes = (SequenceOutcome(step.sequence_id, (1,) if step.samples else ()) for step in plan.steps)
    return StepOutcome(tuple(outcomes), STEP_S)
