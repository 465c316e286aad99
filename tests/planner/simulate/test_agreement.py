"""The fast replica agrees with the real scheduler."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.simulate.support import Kind, bent, linear, ran, random_jobs, random_setting, setting_with
from twofold.bench.load.base import Shared
from twofold.engine.kv.manager import GroupSize
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.jobs import JobResult, SimulatedJob
from twofold.planner.simulate.setting import EngineSetting

SAME = 1e-6
"""Maximum difference of times in seconds: rounding errors of thousands of steps."""
NEARLY = 0.1
"""The same if a sequence was preempted: other blocks may be evicted first, so other tokens are computed again. A prompt
that waited for a pace may be admitted at another time then, with its tokens at nearly the same times."""


def same(one: JobResult, other: JobResult, within: float = SAME) -> bool:
    pairs = list(zip(one[1:4], other[1:4], strict=True))[within != SAME :]
    return all(a is b is None or math.isclose(a or 0, b or 0, abs_tol=within) for a, b in pairs)


def agree(exact: dict[int, JobResult], fast: dict[int, JobResult]) -> bool:
    """Whether all jobs have the same times, cached tokens and preemptions."""
    within = NEARLY if any(result.preemptions for result in exact.values()) else SAME
    moments = all(same(exact[number], fast[number], within) for number in exact)
    counts = all((a.cached, a.preemptions) == (fast[n].cached, fast[n].preemptions) for n, a in exact.items())
    return exact.keys() == fast.keys() and moments and counts


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_all_times_are_those_of_the_scheduler(seed: int) -> None:
    rng = random.Random(seed)
    setting, jobs = random_setting(rng), random_jobs(rng, rng.randint(1, 20))
    exact, fast = (ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica))
    assert agree(exact, fast)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_step_times_that_are_not_linear(seed: int) -> None:
    rng = random.Random(seed)
    setting, jobs = random_setting(rng), random_jobs(rng, rng.randint(1, 12))
    exact, fast = (ran(kind(setting, bent), jobs) for kind in (ExactReplica, FastReplica))
    assert agree(exact, fast)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 300))
def test_windows(seed: int, window: int) -> None:
    """Layers with and without a window: sums of the positions that rows see are those of each sequence."""
    rng = random.Random(seed)
    jobs = random_jobs(rng, rng.randint(1, 12))
    size = rng.choice([4, 16])
    many = GroupSize(window, 4000)
    exact_setting = EngineSetting((GroupSize(None, 4000), many), sequences=16, rows=64, block_size=size)
    exact = ran(ExactReplica(exact_setting, linear, (None, window)), jobs)
    fast = ran(FastReplica(exact_setting, linear, (None, window)), jobs)
    assert agree(exact, fast)


def test_preemptions_agree() -> None:
    """With completions longer than the look-ahead and too few blocks, sequences are preempted."""
    setting = setting_with(blocks=80, sequences=8, rows=128, context=900)
    jobs = [SimulatedJob(number, 0.01 * number, 60, 700, stream=number) for number in range(6)]
    exact, fast = (ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica))
    assert sum(result.preemptions for result in exact.values()) > 3
    assert agree(exact, fast)


def test_a_prompt_that_outlasts_the_look_ahead() -> None:
    """Decoding sequences take the blocks that a long prompt needs later: its chunks shrink, then it is preempted."""
    setting = setting_with(blocks=4803, sequences=8, rows=12, block_size=1, context=4000)
    jobs = [SimulatedJob(number, 0.01 * number, 20, 900, stream=number) for number in range(6)]
    jobs.append(SimulatedJob(6, 0.5, 2500, 40, stream=6))
    exact, fast = (ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica))
    assert exact[6].preemptions > 0
    assert agree(exact, fast)


@pytest.mark.parametrize("seed", [0, 5, 9])
def test_a_refused_head_is_tried_again_when_blocks_are_freed(seed: int) -> None:
    """With blocks of one position each step takes many: more than a finished sequence may free."""
    rng = random.Random(seed)
    setting = setting_with(
        blocks=rng.randint(200, 500), sequences=24, rows=rng.choice([24, 64, 128]), block_size=1, context=200
    )
    lengths = [(0.02 * n * rng.random(), rng.choice([2, 5, 60, 100]), rng.choice([2, 3, 20, 60])) for n in range(40)]
    jobs = [SimulatedJob(number, *each, stream=number) for number, each in enumerate(sorted(lengths))]
    assert agree(*(ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica)))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_shared_prefixes_agree_nearly(seed: int, even: bool) -> None:
    """With pieces of equal and of any lengths. Different blocks may be evicted while another job computes the same
    tokens, so the cached tokens differ a little if blocks are short."""
    rng = random.Random(seed)
    setting, jobs = random_setting(rng), random_jobs(rng, 30, shares=True, even=even)
    exact, fast = (ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica))
    cached = [sum(each.cached for each in done.values()) for done in (exact, fast)]
    assert abs(cached[0] - cached[1]) <= 0.15 * cached[0] + 64
    ends = [sum(each.last_s or 0 for each in done.values()) for done in (exact, fast)]
    assert ends[0] == pytest.approx(ends[1], rel=0.03)


@pytest.mark.parametrize("even", [True, False])
def test_shared_prefixes_agree_to_the_token_if_no_block_is_evicted(even: bool) -> None:
    """Also inside blocks, with pieces of any lengths; one job at a time, so that no tokens are computed twice."""
    for seed in range(3):
        rng = random.Random(seed)
        setting = setting_with(blocks=4000, sequences=1, rows=64, block_size=rng.choice([1, 4, 16]), context=900)
        jobs = random_jobs(rng, 30, shares=True, even=even)
        exact, fast = (ran(kind(setting, linear), jobs) for kind in (ExactReplica, FastReplica))
        assert agree(exact, fast)


@pytest.mark.parametrize("kind", [ExactReplica, FastReplica])
def test_a_prompt_that_is_cached_whole_runs_in_a_full_cache(kind: Kind) -> None:
    """The last cached block is not matched, since its last token must be computed: it is evicted for the job's own."""
    jobs = [SimulatedJob(number, float(number), 64, 1, (Shared(0, 64),), number) for number in range(2)]
    done = ran(kind(setting_with(blocks=4, sequences=2, rows=64, context=65), linear), jobs)
    assert [(done[number].cached, done[number].preemptions) for number in range(2)] == [(0, 0), (63, 0)]


@pytest.mark.parametrize("seed", [6, 43])
def test_turns_of_a_session_that_overlap_end(seed: int) -> None:
    """A later turn may have computed the tokens that an earlier one computes again, and leave no room for them."""
    rng = random.Random(seed)
    setting = random_setting(rng)
    jobs = [job._replace(stream=-1 - rng.randint(0, 3)) for job in random_jobs(rng, 40)]
    assert len(ran(FastReplica(setting, linear), jobs)) == len(jobs)


def test_a_prefilled_prompt_gets_blocks_in_a_full_cache() -> None:
    """The cache is full of a session's later tokens, which are evicted for the last block of an earlier prompt."""
    jobs = [SimulatedJob(n, float(n), 64 - n, 65, stream=-1, prefilled=64 - n) for n in range(2)]
    done = ran(FastReplica(setting_with(blocks=8, sequences=2, rows=64, context=129), linear), jobs)
    assert [done[number].cached for number in range(2)] == [0, 63]


def test_sessions_find_their_own_history() -> None:
    turns = [
        SimulatedJob(0, 0.0, 100, 60, stream=-1),
        SimulatedJob(1, 5.0, 200, 40, stream=-1),
        SimulatedJob(2, 10.0, 300, 20, stream=-1),
    ]
    setting = setting_with(sequences=4, rows=64, context=1000)
    for kind in (ExactReplica, FastReplica):
        done = ran(kind(setting, linear), turns)
        assert [done[number].cached for number in range(3)] == [0, 144, 224]


def test_a_run_in_parts_has_the_same_times() -> None:
    rng = random.Random(5)
    setting, jobs = random_setting(rng), random_jobs(rng, 30)
    whole = ran(FastReplica(setting, linear), jobs)
    for kind in (ExactReplica, FastReplica):
        replica = kind(setting, linear)
        for job in jobs:
            replica.advance(job.due_s)
            replica.submit(job, job.due_s)
        while replica.next_s < math.inf:
            replica.advance(replica.next_s)
        assert all(same(whole[done.job.number], done) for done in replica.done)
        assert len(replica.done) == len(jobs)


def test_jobs_that_can_never_run_are_refused() -> None:
    setting = setting_with(blocks=10, context=10_000, sequences=2, rows=64)
    for kind in (ExactReplica, FastReplica):
        done = ran(kind(setting, linear), [SimulatedJob(0, 0.0, 500, 10), SimulatedJob(1, 1.0, 50, 10, stream=1)])
        assert done[0].last_s is None
        assert done[1].last_s is not None
