"""Open and closed loops: which requests are due, and which follow an ended one."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.load.player import ended, played
from twofold.bench.load.base import Outcome
from twofold.bench.load.lengths import Fixed, Uniform
from twofold.bench.load.synthetic import PAUSE_S, Arrivals, ClosedLoop, OpenLoop, RandomRequests
from twofold.core.errors import ParameterError

ASKS = RandomRequests(Fixed(10), Fixed(5))


def test_an_open_loop_ends_with_its_duration() -> None:
    asks = list(OpenLoop(Arrivals(10.0, "constant"), ASKS, duration_s=2.0).begin())
    assert [ask.due_s for ask in asks] == [index / 10 for index in range(20)]
    assert [ask.index for ask in asks] == list(range(20))


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 200), st.floats(0.1, 20), st.integers(1, 300), st.integers(0, 99))
def test_an_open_loop_ends_at_its_first_limit(rate: float, duration_s: float, requests: int, seed: int) -> None:
    asks = RandomRequests(Uniform(1, 99), Uniform(1, 99), seed=seed)
    both = list(OpenLoop(Arrivals(rate), asks, duration_s, requests).begin())
    counted = list(OpenLoop(Arrivals(rate), asks, requests=requests).begin())
    assert len(counted) == requests
    assert both == [ask for ask in counted if ask.due_s < duration_s]
    assert all(a.due_s <= b.due_s for a, b in pairwise(counted))


def test_an_open_loop_repeats_and_no_request_follows_another() -> None:
    load = OpenLoop(Arrivals(50.0), ASKS, duration_s=3.0, max_open=4)
    asks = list(load.begin())
    assert list(load.begin()) == asks
    assert all(load.follow(ended(ask, 1.0), 1.0) is None for ask in asks)
    assert load.max_open == 4
    assert load.describe()["concurrency"] == 4


def test_an_infinite_rate_needs_a_number() -> None:
    assert len(list(OpenLoop(Arrivals(math.inf), ASKS, requests=30).begin())) == 30
    with pytest.raises(ParameterError, match="An infinite rate needs a number of requests"):
        OpenLoop(Arrivals(math.inf), ASKS, duration_s=5.0)


def test_a_description_of_an_open_loop() -> None:
    assert OpenLoop(Arrivals(2.0), ASKS, duration_s=60.0).describe() == {
        "kind": "open",
        "arrivals": {"kind": "poisson", "rate": 2.0},
        "duration_s": 60.0,
        "requests": None,
        "concurrency": None,
        **ASKS.description,
    }


@pytest.mark.parametrize("wrong", [{}, {"duration_s": 0.0}, {"duration_s": math.nan}, {"requests": 0}])
def test_loops_without_an_end(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        OpenLoop(Arrivals(1.0), ASKS, **wrong)
    with pytest.raises(ParameterError):
        ClosedLoop(1, ASKS, **wrong)


def test_clients_of_a_closed_loop_begin_over_its_ramp() -> None:
    load = ClosedLoop(4, ASKS, requests=100, ramp_s=2.0)
    assert [ask.due_s for ask in load.begin()] == [0.0, 0.5, 1.0, 1.5]
    assert load.max_open == 4


def test_without_a_ramp_all_clients_begin_at_once() -> None:
    assert [ask.due_s for ask in ClosedLoop(3, ASKS, requests=100).begin()] == [0.0] * 3


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 100), st.floats(0, 5), st.floats(0.01, 3))
def test_a_closed_loop_sends_its_requests_and_never_opens_more(
    clients: int, requests: int, ramp_s: float, service_s: float
) -> None:
    began = played(ClosedLoop(clients, ASKS, requests=requests, ramp_s=ramp_s), service_s)
    assert sorted(ask.index for ask in began) == list(range(requests))
    edges = sorted([(ask.due_s, 1) for ask in began] + [(ask.due_s + service_s, -1) for ask in began])
    now_open = 0
    for _, step in edges:
        now_open += step
        assert now_open <= clients


def test_a_closed_loop_ends_with_its_duration() -> None:
    began = played(ClosedLoop(2, ASKS, duration_s=10.0), 0.999)
    assert len(began) == 22
    assert max(ask.due_s for ask in began) < 10


def test_a_closed_loop_can_be_repeated() -> None:
    load = ClosedLoop(2, RandomRequests(Uniform(1, 999), Fixed(5), seed=3), requests=50)
    assert played(load, 1.0) == played(load, 1.0)


@pytest.mark.parametrize("outcome", ["refused", "failed", "broken", "late"])
def test_a_client_that_fails_at_once_pauses(outcome: Outcome) -> None:
    began = played(ClosedLoop(2, ASKS, duration_s=10.0), 0.0001, outcome=outcome)
    assert 180 <= len(began) <= 2 * (10 / PAUSE_S + 1)


def test_a_client_that_fails_slowly_does_not_pause() -> None:
    load = ClosedLoop(1, ASKS, duration_s=10.0)
    (first,) = load.begin()
    following = load.follow(ended(first, 3.0, outcome="late"), 3.0)
    assert following is not None
    assert following.due_s == 3.0


def test_a_ramp_is_over_before_the_run() -> None:
    with pytest.raises(ParameterError, match="A ramp of 5 s must be shorter than the run of 5 s"):
        ClosedLoop(2, ASKS, duration_s=5.0, ramp_s=5.0)
    with pytest.raises(ParameterError, match="concurrency must be a whole number"):
        ClosedLoop(0, ASKS, requests=1)


def test_a_description_of_a_closed_loop() -> None:
    assert ClosedLoop(8, ASKS, duration_s=60.0, ramp_s=4.0).describe() == {
        "kind": "closed",
        "concurrency": 8,
        "ramp_s": 4.0,
        "pause_after_failure_s": 0.1,
        "duration_s": 60.0,
        "requests": None,
        **ASKS.description,
    }
