"""The simulation agrees with formulas of queueing theory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.planner.simulate.support import linear, ran, setting_with
from twofold.planner.predict.queueing import Queue
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.jobs import SimulatedJob


@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_pollaczek_khinchine(busy: float) -> None:
    """One slot and completions of one token: an M/G/1 queue in which prompts are served."""
    rng = random.Random(1)
    lengths = [rng.choice([50, 200, 900]) for _ in range(20_000)]
    services = [linear(StepSize(n, 1, 1, (n * (n + 1) // 2,), (n,))) for n in lengths]
    rate = busy / float(np.mean(services))
    now, jobs = 0.0, []
    for number, length in enumerate(lengths):
        now += rng.expovariate(rate)
        jobs.append(SimulatedJob(number, now, length, 1, stream=number))
    replica = FastReplica(setting_with(sequences=1, rows=1024), linear)
    waits = [(done.admitted_s or 0) - done.job.due_s for done in ran(replica, jobs).values()]
    queue = Queue(rate, float(np.mean(services)), float(np.mean(np.square(services))))
    assert np.mean(waits) == pytest.approx(queue.mean_wait, rel=0.07)


def test_equal_prompts_at_once_wait_for_each_other() -> None:
    """For b equal prompts of T seconds that arrive at once, one in each step, the mean TTFT is T · (b + 1) / 2."""
    jobs = [SimulatedJob(number, 0.0, 100, 1, stream=number) for number in range(8)]
    done = ran(FastReplica(setting_with(sequences=8, rows=100), linear), jobs)
    each = linear(StepSize(100, 1, 1, (5050,), (100,)))
    assert np.mean([one.first_s for one in done.values()]) == pytest.approx(each * 9 / 2)


def test_a_closed_loop_keeps_littles_law() -> None:
    """Running requests = rate · time that a request runs, with all slots taken from the start."""
    jobs = [SimulatedJob(number, 0.0, 64, 32, stream=number) for number in range(400)]
    done = ran(FastReplica(setting_with(sequences=16, rows=256), linear), jobs).values()
    last = max(one.last_s or 0 for one in done)
    inside = sum((one.last_s or 0) - (one.admitted_s or 0) for one in done) / last
    assert inside == pytest.approx(16, rel=0.05)
