from __future__ import annotations

import math

import numpy as np
import pytest

from tests.bench.metrics.samples import record, sample, steady
from twofold.bench.load.base import Outcome
from twofold.bench.metrics.requests import (
    MIN_SAMPLES,
    Chunks,
    Envelope,
    InterTokenLatency,
    RequestFigures,
    request_figures,
)
from twofold.bench.record import UNKNOWN


def test_each_figure_is_its_definition() -> None:
    figures = RequestFigures.of(sample(1.0, [2.0, 2.5, 4.0], started=1.25, ended=4.5, connect_s=0.01))
    assert (figures.ttft_s, figures.ttft_sent_s, figures.schedule_delay_s) == (1.0, 0.75, 0.25)
    assert (figures.tpot_s, figures.e2e_s, figures.longest_gap_s) == (1.0, 3.0, 1.5)
    assert (figures.connect_s, figures.output_tokens) == (0.01, 3)


def test_tpot_counts_the_tokens_that_the_server_reports() -> None:
    assert RequestFigures.of(sample(0.0, [1.0, 2.0], tokens=[1, 4], usage=5)).tpot_s == 0.25
    assert RequestFigures.of(sample(0.0, [1.0, 2.0], tokens=[1, 4])).tpot_s == 0.25
    blind = RequestFigures.of(sample(0.0, [1.0, 2.0, 3.0], tokens=[UNKNOWN] * 3))
    assert (blind.tpot_s, blind.output_tokens) == (1.0, 3)


def test_one_chunk_has_no_tpot_and_no_gap() -> None:
    whole = sample(0.0, [3.0], usage=128, response={"streamed": False})
    figures = RequestFigures.of(whole)
    assert (figures.ttft_s, figures.e2e_s, figures.tpot_s, figures.longest_gap_s) == (3.0, 3.0, None, None)


def test_a_response_without_output_has_only_an_end() -> None:
    figures = RequestFigures.of(sample(1.0, [], ended=3.0))
    assert (figures.ttft_s, figures.tpot_s, figures.e2e_s) == (None, None, 2.0)


@pytest.mark.parametrize("outcome", ["refused", "failed", "broken", "late"])
def test_a_failure_is_infinitely_slow_even_with_output(outcome: Outcome) -> None:
    figures = RequestFigures.of(sample(0.0, [0.1, 0.2], outcome=outcome))
    slow = (figures.ttft_s, figures.ttft_sent_s, figures.tpot_s, figures.e2e_s, figures.longest_gap_s)
    assert slow == (math.inf,) * 5
    assert figures.schedule_delay_s == 0.0


def test_requests_open_after_the_drain_period_are_infinitely_slow() -> None:
    open_still = sample(0.0, [0.5, 0.6], outcome="unfinished")
    (drained,) = request_figures(record([open_still], 10.0))
    assert (drained.ttft_s, drained.e2e_s, drained.open_s) == (0.5, math.inf, None)
    (stopped,) = request_figures(record([open_still], 10.0, interrupted=True, wall_s=7.0))
    assert (stopped.ttft_s, stopped.e2e_s, stopped.tpot_s, stopped.open_s) == (0.5, None, None, 7.0)


def test_itl_of_chunks_and_of_tokens() -> None:
    samples = [sample(0.0, [1.0, 2.0, 5.0], tokens=[1, 1, 3]), sample(0.0, [9.0])]
    itl = InterTokenLatency.of(samples, Chunks.of(samples))
    assert (itl.gap_s.n, itl.gap_s.min, itl.gap_s.max) == (2, 1.0, 3.0)
    assert (itl.token_s.n, itl.token_s.min, itl.token_s.max, itl.several_share) == (4, 1.0, 1.0, 0.25)


def test_a_chunk_without_tokens_prolongs_the_gap_of_the_next() -> None:
    samples = [sample(0.0, [1.0, 2.0, 5.0], tokens=[1, 0, 2])]
    gaps, tokens = Chunks.of(samples).gaps(Chunks.of(samples).with_tokens())
    assert (gaps.tolist(), tokens.tolist()) == ([4.0], [2.0])


def test_chunks_without_counts_share_the_remaining_usage() -> None:
    known = sample(0.0, [1.0, 2.0, 3.0], tokens=[2, UNKNOWN, UNKNOWN], usage=7)
    silent = sample(0.0, [1.0, 2.0], tokens=[UNKNOWN] * 2)
    chunks = Chunks.of([known, silent])
    assert chunks.tokens.tolist() == [2.0, 2.5, 2.5, 1.0, 1.0]
    assert chunks.known.tolist() == [True, False, False, False, False]
    assert InterTokenLatency.of([known, silent], chunks).assumed_share == 0.8


def test_a_stream_that_breaks_off_adds_an_infinite_gap() -> None:
    samples = [sample(0.0, [1.0, 2.0], outcome="broken"), sample(0.0, [], outcome="refused")]
    itl = InterTokenLatency.of(samples, Chunks.of(samples))
    assert (itl.gap_s.n, itl.gap_s.failed) == (2, 1)


def test_no_chunks_at_all() -> None:
    itl = InterTokenLatency.of([], Chunks.of([]))
    assert (itl.gap_s.n, itl.token_s.n, itl.several_share, itl.assumed_share) == (0, 0, None, None)


def test_the_envelope_is_below_all_responses_and_rises_with_the_prompt() -> None:
    rng = np.random.default_rng(5)
    samples = []
    for _ in range(200):
        length = int(rng.integers(10, 1000))
        queue = float(rng.exponential(0.2)) if rng.random() < 0.7 else 0.0
        ttft = 0.01 + 1e-4 * length + 1e-7 * length**2 + queue
        samples.append(sample(0.0, [ttft, ttft + 1], asked=(length, 4), sent_s=queue))
    envelope = Envelope.of(samples)
    assert envelope is not None
    estimates = [envelope.queue(each) or 0.0 for each in samples]
    truth = [each.sent_s or 0.0 for each in samples]
    assert all(estimate <= real + 1e-9 for estimate, real in zip(estimates, truth, strict=True))
    assert np.abs(np.array(estimates) - truth).mean() < 0.01
    assert list(envelope.seconds) == sorted(envelope.seconds)
    assert envelope.at(0) == envelope.seconds[0]


def test_cached_tokens_are_not_prefilled() -> None:
    cold = steady(MIN_SAMPLES, 1.0, 1.0)
    hit = sample(0.0, [0.2, 0.3], asked=(8, 4), response={"prompt_tokens": 8, "cached_tokens": 7})
    envelope = Envelope.of([*cold, hit])
    assert envelope is not None
    assert (envelope.at(1), envelope.at(8), envelope.queue(hit)) == (0.2, 1.0, 0.0)


def test_too_few_responses_have_no_estimate() -> None:
    assert Envelope.of(steady(MIN_SAMPLES - 1, 1.0, 0.5)) is None
    assert request_figures(record(steady(3, 1.0, 0.5), 3.0))[0].queue_s is None
