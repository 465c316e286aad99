"""Waiting for one server, compared with exact results."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.planner.predict.queueing import Queue, quantile


def exponential(rate: float, mean: float) -> Queue:
    return Queue(rate, mean, 2 * mean**2)


def test_mean_wait_is_pollaczek_and_khinchines() -> None:
    assert Queue(0.5, 1.0, 1.0).mean_wait == pytest.approx(0.5)
    assert exponential(0.5, 1.0).mean_wait == pytest.approx(1.0)
    assert Queue(3.0, 0.2, 0.07).mean_wait == pytest.approx(3.0 * 0.07 / (2 * (1 - 3.0 * 0.2)))


def test_tail_is_exact_where_service_times_are_exponential() -> None:
    queue = exponential(0.8, 1.0)
    # M/M/1: P(W > t) = ρ e^(−(μ − λ) t)
    assert queue.waits_longer(5.0) == pytest.approx(0.8 * math.exp(-0.2 * 5))
    assert quantile(0.99, queue, [(1.0, 0.0)]) == pytest.approx(math.log(0.8 / 0.01) / 0.2, rel=1e-6)


def test_more_than_can_be_served_waits_without_end() -> None:
    queue = Queue(2.0, 0.5, 0.3)
    assert queue.mean_wait == math.inf
    assert quantile(0.9, queue, [(1.0, 0.1)]) == math.inf


def test_requests_do_not_wait_for_an_idle_server() -> None:
    assert quantile(0.99, Queue(0.0, 1.0, 1.0), [(0.5, 0.1), (0.5, 0.4)]) == pytest.approx(0.4)
    assert quantile(0.4, Queue(0.0, 1.0, 1.0), [(0.5, 0.1), (0.5, 0.4)]) == pytest.approx(0.1, abs=1e-6)


@settings(max_examples=80)
@given(st.floats(0.01, 0.95), st.floats(0.01, 10), st.floats(1, 5), st.floats(0.5, 0.999))
def test_the_share_is_what_stays_within_the_quantile(busy: float, mean: float, spread: float, share: float) -> None:
    queue = Queue(busy / mean, mean, spread * mean**2)
    after = [(0.7, 0.2), (0.2, 1.0), (0.1, 3.0)]
    found = quantile(share, queue, after)
    beyond = sum(part * queue.waits_longer(found - seconds) for part, seconds in after)
    assert beyond <= 1 - share + 1e-6
    assert quantile(min(0.9999, share + 0.0009), queue, after) >= found - 1e-9
