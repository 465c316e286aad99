"""Many replicas: routers, loads that wait for completions, separate phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tests.planner.simulate.support import Kind, linear, setting_with
from twofold.bench.load.lengths import Fixed
from twofold.bench.load.synthetic import LoadPlan, SharedPrefix
from twofold.core.errors import ParameterError
from twofold.fleet.routing.router import make_router
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.figures import figures
from twofold.planner.simulate.fleet import Handover, Simulated, Source, simulate
from twofold.planner.simulate.jobs import IndependentJobs, Jobs, SimulatedJob, prompt_history, repeated

SETTING = setting_with(sequences=8, rows=256, context=4000)


def run(source: Source, count: int = 1, router: str = "round-robin", kind: Kind = FastReplica) -> Simulated:
    replicas = [kind(SETTING, linear) for _ in range(count)]
    found = simulate(source, replicas, make_router(router))
    for replica in replicas:
        replica.check_idle()
    return found


def plan(**flags: object) -> Jobs:
    return Jobs(LoadPlan(**flags).load(prompt_history, 0))  # type: ignore[arg-type]


def equal_jobs(count: int, gap: float = 0.1) -> list[SimulatedJob]:
    return [SimulatedJob(number, gap * number, 64, 16, stream=number) for number in range(count)]


def by_number(values: Sequence[float], found: Simulated) -> list[float]:
    return [value for _, value in sorted(zip(found.jobs.index, values, strict=True))]


def test_one_replica_runs_alike_with_routers_that_watch_ends_and_that_do_not() -> None:
    jobs = equal_jobs(40, 0.02)
    apart, together = run(IndependentJobs(jobs)), run(IndependentJobs(jobs), router="least-loaded")
    for column in ("admitted_s", "first_s", "last_s"):
        one, other = (by_number(getattr(found.jobs, column), found) for found in (apart, together))
        assert one == pytest.approx(other, abs=1e-6)


def test_round_robin_takes_turns() -> None:
    found = run(IndependentJobs(equal_jobs(9)), 3)
    assert by_number(found.jobs.replica, found) == [0, 1, 2] * 3


def test_the_least_loaded_replica_is_chosen() -> None:
    """One replica has a long completion; later short ones go to the other replica."""
    long = SimulatedJob(0, 0.0, 64, 2000, stream=0)
    short = [SimulatedJob(number, float(number), 64, 2, stream=number) for number in range(1, 6)]
    found = run(IndependentJobs([long, *short]), 2, "least-loaded")
    assert by_number(found.jobs.replica, found) == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("router", ["longest-match", "predicted"])
def test_prompts_with_a_common_prefix_go_to_one_replica(router: str) -> None:
    shared = SharedPrefix(0.8, groups=120)
    flags = {"rate": 20.0, "duration_s": 30.0, "input_tokens": Fixed(320), "output_tokens": Fixed(8), "shared": shared}
    cached = [sum(run(plan(**flags), 4, name).jobs.cached) for name in ("round-robin", router)]
    assert cached[1] > 1.15 * cached[0]


def test_longest_match_is_bounded() -> None:
    """If all prompts have one prefix, they do not all go to one replica."""
    flags = {"rate": 100.0, "duration_s": 5.0, "input_tokens": Fixed(300), "output_tokens": Fixed(64)}
    found = run(plan(**flags, shared=SharedPrefix(2 / 3, groups=1)), 4, "longest-match")
    counts = np.bincount(found.jobs.replica, minlength=4)
    assert counts.min() > 0
    assert counts.max() < 0.5 * counts.sum()


@pytest.mark.parametrize("kind", [FastReplica, ExactReplica])
def test_a_closed_loop_sends_the_next_request_when_one_ends(kind: Kind) -> None:
    found = run(plan(concurrency=3, requests=12, input_tokens=Fixed(64), output_tokens=Fixed(16)), kind=kind)
    due, last = (np.array(by_number(column, found)) for column in (found.jobs.due_s, found.jobs.last_s))
    assert len(due) == 12
    assert all(np.isin(np.round(due[3:], 9), np.round(last, 9)))


@pytest.mark.parametrize("kind", [FastReplica, ExactReplica])
def test_the_maximum_of_open_requests_is_kept(kind: Kind) -> None:
    """Further requests wait at their source, and their TTFT counts from the time at which they were due."""
    load = plan(rate=math.inf, concurrency=2, requests=10, input_tokens=Fixed(64), output_tokens=Fixed(16))
    found = run(load, kind=kind)
    moments = sorted([(time, 1) for time in found.jobs.admitted_s] + [(time, -1) for time in found.jobs.last_s])
    assert max(np.cumsum([change for _, change in moments])) == 2
    assert set(found.jobs.due_s) == {0.0}
    assert max(found.jobs.first_s) > 5 * min(found.jobs.first_s)


@pytest.mark.parametrize("kind", [FastReplica, ExactReplica])
def test_a_session_repeats_its_earlier_turns(kind: Kind) -> None:
    load = plan(concurrency=1, requests=1, turns=Fixed(3), input_tokens=Fixed(100), output_tokens=Fixed(20))
    found = run(load, kind=kind)
    assert by_number(found.jobs.prompt, found) == [100, 220, 340]
    assert by_number(found.jobs.cached, found) == [0, 112, 224]


def test_separate_phases() -> None:
    """A prefill replica computes the first token; the second follows after the transfer of keys and values."""
    jobs = equal_jobs(20)
    decode = [FastReplica(SETTING, linear) for _ in range(2)]
    prefill = [FastReplica(SETTING, linear)]
    found = simulate(
        IndependentJobs(jobs), prefill, make_router("round-robin"), Handover(decode, lambda tokens: tokens / 640)
    )
    together = run(IndependentJobs(jobs))
    assert found.prefill_replicas == 1
    assert len(found.jobs) == 20
    first, last = np.array(found.jobs.first_s), np.array(found.jobs.last_s)
    assert (last - first >= 0.1 + 15 * 0.005).all()
    assert np.mean(first) < np.mean(together.jobs.first_s), "no decoding sequence delays a prompt"
    assert prefill[0].work.decode_s == 0
    assert sum(each.work.prefill_rows for each in decode) == 0
    for replica in (*prefill, *decode):
        replica.check_idle()


def test_completions_of_one_token_need_no_transfer() -> None:
    jobs = [SimulatedJob(0, 0.0, 64, 1)]
    decode = [FastReplica(SETTING, linear)]
    found = simulate(
        IndependentJobs(jobs),
        [FastReplica(SETTING, linear)],
        make_router("round-robin"),
        Handover(decode, lambda _: 9.0),
    )
    assert found.jobs.last_s[0] < 1
    assert decode[0].work.steps == 0


def test_a_job_arrives_after_the_delay() -> None:
    late = simulate(
        IndependentJobs(equal_jobs(3)), [FastReplica(SETTING, linear)], make_router("round-robin"), delay_s=0.5
    )
    soon = run(IndependentJobs(equal_jobs(3)))
    assert [first - 0.5 for first in late.jobs.first_s] == pytest.approx(list(soon.jobs.first_s))


def test_a_repeated_trace_has_new_streams_in_each_round() -> None:
    jobs = plan(rate=10.0, requests=5)
    asked = list(repeated(jobs, 3).begin())
    assert [job.number for job in asked] == list(range(15))
    assert len({job.stream for job in asked}) == 15
    assert all(a.due_s < b.due_s for a, b in pairwise(asked))
    with pytest.raises(ParameterError, match="--repeat must be at least 1, and needs a load without conversations"):
        repeated(plan(concurrency=2, requests=5), 2)


def test_an_unknown_router_gets_the_closest_name() -> None:
    with pytest.raises(ParameterError) as caught:
        make_router("predictd")
    assert caught.value.hint == "Did you mean 'predicted'?"


def test_figures_count_refused_jobs_as_infinitely_slow() -> None:
    jobs = [*equal_jobs(3), SimulatedJob(3, 0.3, 5000, 10, stream=3)]
    found = figures(run(IndependentJobs(jobs)))
    assert (found.requests, found.refused) == (4, 1)
    assert found.ttft.p99 == math.inf
    assert found.plain()["ttft"]["p99"] is None
    assert found.ttft.p50 is not None
    assert math.isfinite(found.ttft.p50)
