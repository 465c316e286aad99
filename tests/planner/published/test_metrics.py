"""What others call by the names of our measures, and what a run shows that counts from the wrong moment."""

from __future__ import annotations

import math

import pytest

from tests.bench.metrics.samples import record, sample
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.goodput import SCENARIOS
from twofold.bench.metrics.requests import Chunks, InterTokenLatency, RequestFigures
from twofold.bench.metrics.summary import summarise

ASKED, LATE_S, ANSWERED_S = 200, 54.0, 2.75


def test_ttft_from_the_send_hides_the_wait_at_the_client() -> None:
    """Coordinated omission (Tene 2013): a public run told of a P99 of 2.75 s where requests left 54 s late."""
    samples = []
    for at in range(ASKED):
        due, late = at * 0.1, LATE_S * min(1.0, at / (0.98 * ASKED))
        first = due + late + ANSWERED_S
        samples.append(sample(due, [first, first + 0.1], started=due + late, index=at))
    found = summarise(record(samples, ASKED * 0.1)).latency
    assert found.ttft_sent_s.p99 == pytest.approx(2.75)
    assert found.schedule_delay_s.p99 == pytest.approx(54)
    assert found.ttft_s.p99 == pytest.approx(54 + 2.75)


def test_a_tpot_does_not_include_ttft() -> None:
    """GuideLLM divides the whole answer by its tokens: 0.3 s here, where tokens came 0.1 s apart."""
    figures = RequestFigures.of(sample(0.0, [0.9, 1.0, 1.1, 1.2]))
    assert figures.e2e_s is not None
    assert figures.tpot_s == pytest.approx(0.1)
    assert figures.e2e_s / figures.output_tokens == pytest.approx(0.3)
    assert figures.e2e_s == pytest.approx(0.9 + 3 * 0.1)


def test_an_itl_is_every_gap_and_no_mean_of_an_answer() -> None:
    """AIPerf's inter-token latency is a TPOT: 0.25 s, and says nothing of the stall of 0.7 s."""
    stalled = sample(0.0, [1.0, 1.1, 1.8, 2.0], tokens=[1, 1, 1, 2])
    itl = InterTokenLatency.of([stalled], Chunks.of([stalled]))
    assert RequestFigures.of(stalled).tpot_s == pytest.approx(0.25)
    assert itl.gap_s.n == 3
    assert itl.gap_s.max == pytest.approx(0.7)


def test_a_hundredth_of_failures_is_the_p99() -> None:
    """Failures are infinitely slow: with two of a hundred there is no P99."""
    assert MeasureDistribution.of([0.1] * 99 + [math.inf]).p99 == 0.1
    assert MeasureDistribution.of([0.1] * 98 + [math.inf] * 2).p99 == math.inf


def test_limits_of_mlperf() -> None:
    """TTFT and TPOT in ms, of P99 (MLPerf Inference, server scenario)."""
    found = {each.name: (round(each.ttft_p99_s * 1e3), round(each.tpot_p99_s * 1e3)) for each in SCENARIOS}
    assert found == {
        "llama2-70b": (2000, 200),
        "llama2-70b-interactive": (450, 40),
        "llama3.1-405b": (6000, 175),
        "llama3.1-8b": (2000, 100),
    }
