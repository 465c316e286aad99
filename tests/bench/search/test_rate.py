from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.metrics.samples import record, sample
from tests.bench.search.servers import Line, capacity, exponential, fixed
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.record import RunRecord
from twofold.bench.search import (
    MIN_REQUESTS,
    Aim,
    Rounds,
    SearchOptions,
    SearchResult,
    Trial,
    find_rate,
    requests_to_be_sure,
)
from twofold.core.errors import ParameterError

AIM = Aim(Objectives(ttft=0.5), 0.9)


def _covered(found: SearchResult, true: float) -> bool:
    return (found.sure_pass or 0.0) <= true * 1.03 and true * 0.97 <= (found.sure_fail or np.inf)


@pytest.mark.parametrize("limit", [0.5, 2.0])
@pytest.mark.parametrize("make", [fixed, exponential])
def test_the_capacity_of_a_line_is_found(make: Callable[[float], Line], limit: float) -> None:
    true = capacity(make(0.1), limit, 0.9)
    found = find_rate(make(0.1), Aim(Objectives(ttft=limit), 0.9, MeasurementRule(5.0)))
    assert found.rate is not None
    assert found.rate == pytest.approx(true, rel=0.15)
    assert _covered(found, true)
    assert found.bounded
    assert found.settled


def test_certain_verdicts_are_nearly_always_right() -> None:
    """Each verdict is right with 95 %; a search has several, and neighbours are only estimated to be independent."""
    true = capacity(fixed(0.1), 0.4, 0.9)
    found = [_search(seed, start=true * (0.1 + seed)) for seed in range(8)]
    assert sum(_covered(each, true) for each in found) >= 7
    assert all(each.rate == pytest.approx(true, rel=0.25) for each in found)


def _search(seed: int, start: float) -> SearchResult:
    line = fixed(0.1)
    aim = Aim(Objectives(ttft=0.4), 0.9)
    return find_rate(lambda rate, seconds, run: line(rate, seconds, run + 1000 * seed), aim, SearchOptions(start=start))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.integers(0, 100))
def test_laws_of_every_search(seed: int) -> None:
    line = exponential(0.1)
    found = find_rate(lambda rate, seconds, run: line(rate, seconds, run + 1000 * seed), AIM)
    assert [run for trial in found.trials for run in trial.runs] == list(range(len(line.runs)))
    assert [run - 1000 * seed for _, _, run in line.runs] == list(range(len(line.runs)))
    assert found.sure_pass is None or found.sure_fail is None or found.sure_pass < found.sure_fail
    assert found.rate == max(trial.rate for trial in found.trials if trial.passed)
    assert all(trial.seconds <= found.options.max_seconds + 1e-6 for trial in found.trials)
    assert len(found.trials) <= found.options.max_trials


def test_a_queue_that_grows_is_not_sustained_however_loose_the_objective() -> None:
    found = find_rate(fixed(0.1), Aim(Objectives(ttft=3600.0), 0.9, MeasurementRule(5.0)), SearchOptions(start=4.0))
    assert found.rate is not None
    assert found.rate < 11.5
    failed = [trial for trial in found.trials if trial.rate > 12.5]
    assert failed
    assert all(trial.sure and trial.growth is not None and trial.attainment == 1.0 for trial in failed)


def test_growing_latency_is_not_sustained() -> None:
    line = fixed(0.001)
    line.decode_growth = 0.2
    rounds = Rounds(10.0, AIM, 0.95)
    rounds.add(line(10.0, 30.0, 0), 30.0, 0)
    assert rounds.trial().passed
    rounds.add(line(10.0, 60.0, 1), 60.0, 1)
    trial = rounds.trial()
    assert (trial.passed, trial.sure, trial.growth and trial.growth[0]) == (False, True, "e2e")
    assert trial.why.startswith("E2E grows by 0.2 s per second")


def test_refusals_miss() -> None:
    line = fixed(0.1)
    line.failing_from = 0.3
    found = find_rate(line, Aim(Objectives(ttft=60.0), 0.9))
    assert found.rate is not None
    assert found.rate < 10.0


def test_neighbours_in_a_queue_do_not_count_in_full() -> None:
    """Near the capacity, hundreds of passing requests are only a few busy periods."""
    rounds = Rounds(9.9, Aim(Objectives(ttft=60.0), 0.9), 0.95)
    rounds.add(fixed(0.1)(9.9, 60.0, 3), 60.0, 0)
    trial = rounds.trial()
    assert (trial.attainment, trial.passed, trial.sure) == (1.0, True, False)
    assert trial.independent < trial.judged / 5


def test_the_highest_and_the_lowest_rate_end_it() -> None:
    fast = find_rate(fixed(1e-4), AIM, SearchOptions(start=4.0, highest=10.0))
    assert (fast.rate, fast.bounded, fast.settled) == (10.0, False, False)
    assert "were not tried" in fast.words()
    slow = find_rate(fixed(2.0), AIM, SearchOptions(start=4.0, lowest=1.0))
    assert (slow.rate, slow.sure_fail) == (None, 1.0)
    assert "not even at 1 requests/s" in slow.words()


def test_no_rate_is_tried_at_which_no_request_may_come() -> None:
    found = find_rate(fixed(20.0), AIM, SearchOptions(seconds=6.0, max_seconds=60.0))
    assert found.rate is None
    assert min(trial.rate for trial in found.trials) == MIN_REQUESTS / 60


def test_a_share_of_1_is_never_certain() -> None:
    found = find_rate(fixed(1e-4), replace(AIM, attainment=1.0), SearchOptions(start=4.0, highest=4.0))
    assert (found.rate, found.sure_pass) == (4.0, None)
    assert requests_to_be_sure(1.0, 0.95) == np.inf


def test_a_stopped_run_ends_the_search() -> None:
    line = fixed(0.1)

    def run(rate: float, seconds: float, seed: int) -> RunRecord:
        record = line(rate, seconds, seed)
        return replace(record, interrupted=len(line.runs) == 3)

    heard: list[Trial] = []
    found = find_rate(run, AIM, on_trial=heard.append)
    assert found.interrupted
    assert found.trials == tuple(heard)
    assert len(found.trials) == 2
    assert found.rate == 2.0


def test_a_server_without_responses_fails_at_once() -> None:
    def run(rate: float, seconds: float, seed: int) -> RunRecord:  # noqa: ARG001
        rows = [sample(at / rate, [], outcome="broken", error="refused") for at in range(int(rate * seconds))]
        return record(rows, seconds)

    found = find_rate(run, AIM, SearchOptions(lowest=0.5))
    assert (found.rate, found.sure_fail, len(found.trials)) == (None, 0.5, 2)


def test_rates_are_bisected_by_ratio() -> None:
    """Doubled up to the first that fails, then the geometric mean of the two."""
    rates = [trial.rate for trial in find_rate(fixed(1.0), replace(AIM, objectives=Objectives(ttft=3.0))).trials]
    assert rates[:3] == pytest.approx([1.0, 0.5, 0.5**0.5])


def test_a_result_is_plain_data() -> None:
    found = find_rate(fixed(0.1), AIM)
    document = found.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["aim"]["objectives"]["ttft"] == 0.5
    assert document["words"].startswith(f"At {found.rate:.4g} requests/s, 90% of requests meet TTFT ≤ 500 ms")


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0.0001},
        {"highest": float("inf")},
        {"seconds": 500.0},
        {"seconds": 0.0},
        {"confidence": 1.0},
        {"precision": 0.0},
        {"max_trials": 0},
    ],
)
def test_impossible_options(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        SearchOptions(**wrong)  # type: ignore[arg-type]
