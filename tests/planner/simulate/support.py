"""Random jobs, simple step-time functions, and runs of both kinds of replicas."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from twofold.bench.load.base import Shared
from twofold.engine.kv.manager import GroupSize
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.jobs import JobResult, SimulatedJob
from twofold.planner.simulate.setting import EngineSetting

Kind = type[ExactReplica] | type[FastReplica]


def linear(size: StepSize) -> float:
    """Step seconds with every term of the formula, and a bend in the number of rows."""
    return (
        0.005
        + max(1e-4 * size.rows, 0.002)
        + 1e-6 * sum(size.read)
        + 1e-8 * sum(size.attended)
        + 1e-5 * size.logit_rows
    )


def bent(size: StepSize) -> float:
    """Step seconds with a bend in the number of positions read."""
    return 0.004 + max(2e-6 * sum(size.read), 0.003) + 1e-4 * size.rows


def random_setting(rng: random.Random, context: int = 900) -> EngineSetting:
    """A small engine, which may be short of blocks, slots or rows."""
    size = rng.choice([1, 4, 16])
    blocks = -(-context // size) + rng.randint(0, rng.choice([2, 20, 100, 1000])) * 16 // size
    sequences = rng.choice([1, 4, 16, 64])
    return EngineSetting(
        (GroupSize(None, blocks),),
        sequences=sequences,
        rows=max(sequences, rng.choice([16, 64, 256])),
        block_size=size,
        context=context,
        prefix_caching=rng.random() < 0.8,
    )


def random_jobs(rng: random.Random, count: int, *, shares: bool = False, even: bool = True) -> list[SimulatedJob]:
    """Jobs of up to 250 + 600 tokens. Shared pieces with the same key have the same length if ``even``, else any."""
    now, jobs = 0.0, []
    for number in range(count):
        now += rng.expovariate(rng.choice([1, 10, 100]))
        prompt = rng.randint(1, 250)
        pieces: tuple[Shared, ...] = ()
        if shares and rng.random() < 0.7:
            key = rng.randint(0, 2)
            pieces = (Shared(key, min(prompt, 37 + 20 * key if even else rng.randint(1, 250))),)
        jobs.append(SimulatedJob(number, now, prompt, rng.randint(1, rng.choice([20, 150, 600])), pieces, number))
    return jobs


def ran(replica: ExactReplica | FastReplica, jobs: Sequence[SimulatedJob]) -> dict[int, JobResult]:
    """Runs all jobs to their end. Returns the results by job number; asserts that nothing is left."""
    for job in jobs:
        replica.submit(job, job.due_s)
    replica.advance(math.inf)
    replica.check_idle()
    assert replica.next_s == math.inf
    return {done.job.number: done for done in replica.done}


def setting_with(blocks: int = 10_000, **changes: object) -> EngineSetting:
    return EngineSetting((GroupSize(None, blocks),), **changes)  # type: ignore[arg-type]
