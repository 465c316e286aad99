"""Every metric of a run agrees with the records of the stub within 2 ms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pytest

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script, at
from tests.bench.truth.runs import (
    CLOSE_S,
    Bounds,
    Play,
    Row,
    Run,
    at_best,
    between,
    percentile_bounds,
    play,
    share,
    since,
)
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import request_figures
from twofold.bench.metrics.summary import Summary, summarise

ENDPOINTS: Final = ("chat", "completions", "messages")
PERCENTILES: Final = {"min": 0.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}
SLOW: Final = 6
"""Of the plays below, how many are slow to begin."""


def plays() -> list[Play]:
    """40 requests in half a second: quick and slow, even and uneven, with one token a chunk and with several."""
    told: list[Play] = []
    for index in range(40):
        first = 0.4 if index < SLOW else 0.01 + 0.004 * (index % 7)
        if index % 4 == 3:
            script = Script(steps=at(first, first + 0.03, first + 0.031, first + 0.09))
        else:
            script = Script(first_s=first, gap_s=0.008 + 0.001 * (index % 5), tokens=1 + index % 3, told="ids")
        told.append(Play(script, due_s=index * 0.012, output_tokens=4 if index % 4 == 3 else 12))
    return told


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_figure_of_every_request(stub: LiveStub, endpoint: str) -> None:
    def check() -> None:
        stub.rules()
        run = play(stub, plays(), endpoint=endpoint)
        figures = {each.index: each for each in request_figures(run.record)}
        for index, row in enumerate(run.rows):
            told, sample = figures[index], row.sample
            assert sample.started_s is not None
            assert (told.outcome, told.output_tokens) == ("ok", row.play.output_tokens)
            true_to(told.ttft_s, since(row.play.due_s, row.first))
            true_to(told.ttft_sent_s, since(sample.started_s, row.first))
            true_to(told.e2e_s, since(row.play.due_s, row.last))
            true_to(told.tpot_s, share(between(row.first, row.last), row.play.output_tokens - 1))
            true_to(told.longest_gap_s, longest(row.gaps))
            true_to(told.schedule_delay_s, Bounds(0.0, row.truth.arrived - row.play.due_s))

    at_best(check)


def test_every_moment_is_that_of_the_script(stub: LiveStub) -> None:
    def check() -> None:
        stub.rules()
        for row in play(stub, plays()).rows:
            moments = [step.at_s for step in row.play.script.each(row.play.output_tokens)]
            late_s = row.truth.late_s  # the stub's own error
            for moment, measured in zip(moments, row.sample.response.moments, strict=True):
                true_to(measured - row.truth.arrived, Bounds(moment, moment + late_s))

    at_best(check)


def test_every_distribution_of_a_run(stub: LiveStub) -> None:
    def check() -> None:
        stub.rules()
        run = play(stub, plays())
        summary = summarise(run.record)
        latency = summary.latency
        same(latency.ttft_s, each(run, lambda row: since(row.play.due_s, row.first)))
        same(latency.ttft_sent_s, each(run, lambda row: since(row.sample.started_s or 0.0, row.first)))
        same(latency.e2e_s, each(run, lambda row: since(row.play.due_s, row.last)))
        same(latency.schedule_delay_s, each(run, lambda row: Bounds(0.0, row.truth.arrived - row.play.due_s)))
        same(latency.tpot_s, each(run, lambda row: share(between(row.first, row.last), row.play.output_tokens - 1)))
        same(latency.longest_gap_s, each(run, lambda row: longest(row.gaps)))
        same(summary.itl.gap_s, [gap for row in run.rows for gap in row.gaps])
        same(summary.itl.token_s, list(token_gaps(run)))

    at_best(check)


def test_rates_and_concurrency_of_a_run(stub: LiveStub) -> None:
    def check() -> None:
        stub.rules()
        run = play(stub, plays())
        summary = summarise(run.record)
        ended = max(row.truth.ended or 0.0 for row in run.rows)
        tokens = sum(row.play.output_tokens for row in run.rows)
        inputs = sum(row.sample.response.prompt_tokens or 0 for row in run.rows)
        assert summary.rates.achieved is not None
        assert summary.concurrency.mean is not None
        true_to(summary.rates.achieved.until_s, Bounds(ended, ended))
        assert summary.rates.achieved.requests_per_s == pytest.approx(len(run.rows) / ended, rel=0.005)
        assert summary.rates.achieved.output_tokens_per_s == pytest.approx(tokens / ended, rel=0.005)
        assert summary.rates.achieved.input_tokens_per_s == pytest.approx(inputs / ended, rel=0.005)
        open_s = sum((row.truth.ended or 0.0) - row.truth.arrived for row in run.rows)
        assert summary.concurrency.mean * ended == pytest.approx(open_s, abs=len(run.rows) * CLOSE_S)

    at_best(check)


def test_goodput_counts_requests_that_met_the_objectives(stub: LiveStub) -> None:
    def check() -> None:
        stub.rules()
        run = play(stub, plays())
        goodput = summarise(run.record, objectives=Objectives(ttft=0.2)).goodput
        assert goodput is not None
        assert goodput.judged == 40
        assert goodput.met + goodput.misses.ttft == 40
        assert goodput.misses.ttft in beyond(0.2, each(run, lambda row: since(row.play.due_s, row.first)))
        uneven = summarise(run.record, objectives=Objectives(itl=0.045)).goodput
        assert uneven is not None
        assert uneven.met + uneven.misses.itl == 40
        assert uneven.misses.itl in beyond(0.045, each(run, lambda row: longest(row.gaps)))

    at_best(check)


def test_a_queue_at_the_server_counts_as_time_to_the_first_token(stub: LiveStub) -> None:
    """Six at once, one after the other at 50 ms each: the k-th waits for k − 1 others, and nothing at the client."""

    def check() -> None:
        stub.rules(capacity=1)
        run = play(stub, [Play(Script(first_s=0.05), output_tokens=1)] * 6)
        waits = sorted(each.ttft_s or 0.0 for each in request_figures(run.record))
        late_s = max(row.truth.late_s for row in run.rows)
        for place, wait in enumerate(waits):
            true_to(wait, Bounds(0.05 * (place + 1), 0.05 * (place + 1) + late_s + CLOSE_S))
        delays: Summary = summarise(run.record)
        assert delays.latency.schedule_delay_s.max is not None
        assert delays.latency.schedule_delay_s.max < CLOSE_S + max(row.truth.arrived for row in run.rows)

    at_best(check)


def beyond(limit: float, truth: list[Bounds]) -> range:
    """How many values may be above a limit; ten or six by the scripts, and more where the stub was late."""
    surely, perhaps = (
        sum(value > limit for value in values)
        for values in zip(*((bounds.least - CLOSE_S, bounds.most + CLOSE_S) for bounds in truth), strict=True)
    )
    assert perhaps >= SLOW
    return range(surely, perhaps + 1)


def true_to(measured: float | None, truth: Bounds) -> None:
    assert measured is not None
    assert truth.error(measured) < CLOSE_S


def same(measured: MeasureDistribution, truth: list[Bounds]) -> None:
    assert (measured.n, measured.failed) == (len(truth), 0)
    for name, of_hundred in PERCENTILES.items():
        true_to(measured.at(name), percentile_bounds(truth, of_hundred))
    least, most = (sum(bounds) / len(truth) for bounds in zip(*((one.least, one.most) for one in truth), strict=True))
    true_to(measured.mean, Bounds(least, most))


def each(run: Run, figure: Callable[[Row], Bounds]) -> list[Bounds]:
    return [figure(row) for row in run.rows]


def longest(gaps: list[Bounds]) -> Bounds:
    return Bounds(max(gap.least for gap in gaps), max(gap.most for gap in gaps))


def token_gaps(run: Run) -> Iterable[Bounds]:
    """For each token after the first chunk, its part of its chunk's gap."""
    for row in run.rows:
        steps = list(row.play.script.each(row.play.output_tokens))[1:]
        for gap, step in zip(row.gaps, steps, strict=True):
            yield from [share(gap, step.tokens)] * step.tokens
