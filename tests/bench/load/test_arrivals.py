"""Arrival processes: rates, burstiness, and equal times for equal seeds."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.load.synthetic import Arrivals, Kind
from twofold.core.errors import ParameterError

processes = st.one_of(
    st.builds(Arrivals, st.floats(0.01, 1e5), st.sampled_from(("constant", "poisson"))),
    st.builds(Arrivals, st.floats(0.01, 1e5), st.just("gamma"), st.floats(0.05, 50)),
)


def moments(arrivals: Arrivals, count: int, seed: int = 1) -> list[float]:
    return list(islice(arrivals.moments(seed), count))


@settings(max_examples=40, deadline=None)
@given(processes, st.integers(0, 2**40))
def test_moments_ascend_from_0_and_are_those_of_the_seed(arrivals: Arrivals, seed: int) -> None:
    found = moments(arrivals, 1500, seed)
    assert found[0] >= 0
    assert all(a <= b for a, b in pairwise(found))
    assert moments(arrivals, 1500, seed) == found


def test_a_constant_rate_does_not_drift() -> None:
    found = moments(Arrivals(3.0, "constant"), 300_001)
    assert found[0] == 0
    assert found[300_000] == 100_000


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_deviation_of_a_gamma_distribution(burstiness: float) -> None:
    gaps = np.diff(moments(Arrivals(20.0, "gamma", burstiness), 100_000), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_gamma_arrivals_of_burstiness_1_are_poisson_ones() -> None:
    poisson, gamma = moments(Arrivals(5.0), 50_000, 3), moments(Arrivals(5.0, "gamma", 1.0), 50_000, 3)
    assert poisson == gamma
    counts = np.bincount(np.floor(poisson).astype(np.int64))[:-1]
    assert counts.mean() == pytest.approx(5, rel=0.03)
    assert counts.var() == pytest.approx(5, rel=0.06)


def test_seeds_differ() -> None:
    assert moments(Arrivals(5.0), 10, 1) != moments(Arrivals(5.0), 10, 2)


@pytest.mark.parametrize("kind", ["constant", "poisson"])
def test_an_infinite_rate_is_all_at_once(kind: Kind) -> None:
    arrivals = Arrivals(math.inf, kind)
    assert moments(arrivals, 3000) == [0.0] * 3000
    assert arrivals.describe() == {"kind": kind, "rate": None}


def test_descriptions() -> None:
    assert Arrivals(2.0, "constant").describe() == {"kind": "constant", "rate": 2.0}
    assert Arrivals(2.0).describe() == {"kind": "poisson", "rate": 2.0}
    assert Arrivals(2.0, "gamma", 0.5).describe() == {"kind": "gamma", "rate": 2.0, "burstiness": 0.5}


@pytest.mark.parametrize(
    ("kind", "burstiness"), [("", 1), ("poison", 1), ("gamma", 0), ("gamma", math.nan), ("constant", 2), ("poisson", 2)]
)
def test_impossible_processes(kind: Any, burstiness: float) -> None:
    with pytest.raises(ParameterError):
        Arrivals(1.0, kind, burstiness)


def test_the_closest_name_is_suggested() -> None:
    poison: Any = "poison"
    with pytest.raises(ParameterError) as caught:
        Arrivals(1.0, poison)
    assert caught.value.hint == "Did you mean 'poisson'?"


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, 1e9, True])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(ParameterError, match="rate must be a number above 0"):
        Arrivals(rate)


def test_burstiness_is_for_gamma_arrivals() -> None:
    with pytest.raises(ParameterError, match="burstiness is for gamma arrivals"):
        Arrivals(1.0, "poisson", 0.5)
