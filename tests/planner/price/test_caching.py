"""When a prompt cache pays: closed forms against a simulation, and published figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.core.errors import ParameterError
from twofold.observe.billing import TokenPrices
from twofold.planner.price.workload import CacheCost, miss_share

FIVE_MINUTES, HOUR = CacheCost(1.25, 0.1), CacheCost(2.0, 0.1)


def test_reads_after_which_a_write_has_paid() -> None:
    assert pytest.approx(0.278, abs=5e-4) == FIVE_MINUTES.break_even_reads
    assert pytest.approx(1.11, abs=2e-3) == HOUR.break_even_reads


def test_mean_gaps_below_which_it_pays() -> None:
    assert FIVE_MINUTES.longest_gap_s(300) / 60 == pytest.approx(20.4, abs=0.05)
    assert HOUR.longest_gap_s(3600) / 60 == pytest.approx(80.3, abs=0.05)
    assert FIVE_MINUTES.longest_gap_s(300, refreshed=False) / 60 == pytest.approx(18.0, abs=0.05)


def test_at_the_longest_gap_it_costs_as_much_as_no_cache() -> None:
    for cost, ttl in ((FIVE_MINUTES, 300.0), (HOUR, 3600.0)):
        for refreshed in (True, False):
            gap = cost.longest_gap_s(ttl, refreshed=refreshed)
            assert cost.mean(miss_share(1 / gap, ttl, refreshed=refreshed)) == pytest.approx(1)


def test_caches_that_always_pay_and_that_never_do() -> None:
    assert CacheCost(1.0, 0.5).longest_gap_s(300) == math.inf
    assert CacheCost(1.0, 0.5).break_even_reads == 0
    assert CacheCost(1.25, 1.0).longest_gap_s(300) == 0
    assert CacheCost(1.25, 1.0).break_even_reads == math.inf


def test_a_session_writes_once() -> None:
    assert [FIVE_MINUTES.mean(1 / n) for n in (1, 2, 10)] == pytest.approx([1.25, 0.675, 0.215])


@given(st.floats(1, 3), st.floats(0, 0.99), st.floats(0, 1))
def test_it_pays_exactly_below_the_most_misses(write: float, read: float, miss: float) -> None:
    cost = CacheCost(write, read)
    if abs(miss - cost.max_misses) > 1e-9:
        assert (cost.mean(miss) < 1 or write == 1) == (miss < cost.max_misses)


def misses(arrivals_s: Iterable[float], ttl_s: float, *, refreshed: bool = True) -> list[bool]:
    """Which of the requests with one prefix, by ascending arrival, find nothing in a cache of that time to live."""
    found, expires = [], -math.inf
    for now in arrivals_s:
        found.append(now >= expires)
        if refreshed or found[-1]:
            expires = now + ttl_s
    return found


@pytest.mark.parametrize("refreshed", [True, False])
@pytest.mark.parametrize("gap_s", [60.0, 300.0, 900.0])
def test_the_simulation_is_within_one_per_cent_of_the_closed_form(gap_s: float, refreshed: bool) -> None:
    """The mean cost of 400,000 arrivals, whose share of misses has a standard error below 0.001."""
    random = Random(7)
    arrivals = accumulate(random.expovariate(1 / gap_s) for _ in range(400_000))
    run = misses(arrivals, 300.0, refreshed=refreshed)
    closed = FIVE_MINUTES.mean(miss_share(1 / gap_s, 300.0, refreshed=refreshed))
    assert FIVE_MINUTES.mean(sum(run) / len(run)) == pytest.approx(closed, rel=0.01)


def test_simulated_entries_live_as_long_as_they_should() -> None:
    times = (0.0, 4.0, 8.0, 13.0, 30.0)
    assert misses(times, 5) == [True, False, False, True, True]
    assert misses(times, 5, refreshed=False) == [True, False, True, True, True]


def test_free_input_needs_no_cache() -> None:

    with pytest.raises(ParameterError, match="Input is free"):
        CacheCost.of(TokenPrices(*[Decimal(0)] * 8), "5m")
