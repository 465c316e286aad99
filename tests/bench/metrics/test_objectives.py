from __future__ import annotations

import math

import pytest

from tests.bench.metrics.samples import record, sample, steady
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.goodput import MeasuredGoodput, Misses, Objectives, misses, mlperf
from twofold.bench.metrics.requests import RequestFigures, request_figures
from twofold.core.errors import ParameterError


def test_limits_with_units() -> None:
    assert Objectives.parse("ttft=500ms, tpot=0.05s,itl=800us") == Objectives(ttft=0.5, tpot=0.05, itl=0.0008)
    assert str(Objectives(e2e=10.0, ttft=0.5)) == "TTFT ≤ 500 ms, E2E ≤ 10 s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft", "not an objective"),
        ("", "not an objective"),
        ("ttft=500", "not a time"),
        ("ttft=-1s", "not a time"),
        ("ttft=0ms", "no request meets"),
        ("ttft=nans", "not a time"),
        ("ttft=1s,ttft=2s", "two limits"),
        ("tfft=1s", "no measure"),
    ],
)
def test_invalid_limits(text: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        Objectives.parse(text)
    assert caught.value.param == "slo"


def test_the_closest_measure_is_suggested() -> None:
    with pytest.raises(ParameterError) as caught:
        Objectives.parse("tfft=1s")
    assert caught.value.hint == "Did you mean 'ttft'?"


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    good, slow_start, slow_all = steady(1, 1.0, 0.1), steady(1, 1.0, 2.0), steady(1, 1.0, 2.0, itl=1.0)
    failed = [sample(0.0, [0.1], outcome="failed"), sample(0.0, [], ended=1.0)]
    figures = request_figures(record([*good, *slow_start, *slow_all, *failed], 10.0))
    found = MeasuredGoodput.of(figures, Objectives(ttft=0.5, tpot=0.5), 10.0)
    assert (found.judged, found.met, found.attainment, found.requests_per_s) == (5, 1, 0.2, 0.1)
    assert found.misses == Misses(failed=1, empty=1, ttft=2, tpot=1)
    assert found.output_tokens_per_s == 0.4
    assert found.interval.low < 0.2 < found.interval.high


def test_a_limit_is_met_by_its_own_value() -> None:
    (figures,) = request_figures(record([sample(0.0, [0.5, 1.0])], 1.0))
    assert misses(figures, Objectives(ttft=0.5, tpot=0.5, itl=0.5, e2e=1.0)) == ()
    assert misses(figures, Objectives(itl=0.49)) == ("itl",)


def test_open_requests_of_a_stopped_run_miss_only_exceeded_limits() -> None:
    waiting = RequestFigures.of(sample(0.0, [], outcome="unfinished"), stopped_s=2.0)
    assert misses(waiting, Objectives(ttft=1.0)) == ("ttft",)
    assert misses(waiting, Objectives(ttft=3.0)) is None
    assert misses(waiting, Objectives(ttft=3.0, e2e=1.0)) == ("e2e",)
    responding = RequestFigures.of(sample(0.0, [0.5], outcome="unfinished"), stopped_s=2.0)
    assert misses(responding, Objectives(ttft=1.0, tpot=1.0)) is None
    found = MeasuredGoodput.of([waiting, responding], Objectives(ttft=1.0), 2.0)
    assert (found.judged, found.met, found.attainment) == (1, 0, 0.0)


def test_without_requests_the_attainment_is_unknown() -> None:
    found = MeasuredGoodput.of([], Objectives(ttft=1.0), 0.0)
    assert (found.attainment, found.requests_per_s, found.interval.low, found.interval.high) == (None, None, 0.0, 1.0)


def test_mlperf_limits_are_of_p99() -> None:
    verdicts = mlperf(MeasureDistribution.of([0.1] * 99 + [9.0]), MeasureDistribution.of([0.05] * 100))
    met = {verdict.scenario.name: verdict.met for verdict in verdicts}
    assert met == {
        "llama2-70b": True,
        "llama2-70b-interactive": False,
        "llama3.1-405b": True,
        "llama3.1-8b": True,
    }
    at_the_limit = mlperf(MeasureDistribution.of([0.45]), MeasureDistribution.of([0.04]))
    assert all(verdict.met for verdict in at_the_limit)
    failing = mlperf(MeasureDistribution.of([0.1] * 98 + [math.inf] * 2), MeasureDistribution.of([0.01]))
    assert not any(verdict.met for verdict in failing)
    assert not any(verdict.met for verdict in mlperf(MeasureDistribution.of([]), MeasureDistribution.of([])))
