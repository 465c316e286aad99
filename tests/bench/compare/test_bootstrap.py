from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench import compare
from twofold.bench.compare import Resamples, Series, block_length, ratio_interval
from twofold.bench.metrics.distribution import Floats, MeasureDistribution
from twofold.core.ranks import nearest_rank


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 5))
def test_every_resample_has_whole_blocks(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=n)
    counts = Resamples.of(values, seed).counts
    block = block_length(values)
    assert counts.shape[1] == n
    assert counts.min() >= 0
    assert (counts.sum(axis=1) == block * math.ceil(n / block)).all()


def test_every_value_is_resampled_equally_often() -> None:
    counts = Resamples.of(np.random.default_rng(1).normal(size=50), 3).counts
    assert np.abs(counts.mean(axis=0) / counts.mean() - 1).max() < 0.15


def test_quantiles_of_a_resample_are_those_of_its_values() -> None:
    rng = np.random.default_rng(2)
    values, owner = rng.exponential(size=90), np.array([at for at in range(100) if at % 10])
    draws = Resamples.of(rng.normal(size=100), 1)
    found = draws.quantiles(Series(values, owner), (0.5, 0.9))
    for at in (0, 7, 99):
        drawn = np.sort(np.repeat(values, draws.counts[at][owner]))
        assert found[0, at] == nearest_rank(drawn, 0.5)
        assert found[1, at] == nearest_rank(drawn, 0.9)


def test_quantiles_of_several_values_a_request() -> None:
    rng = np.random.default_rng(3)
    values, owner = rng.exponential(size=300), np.repeat(np.arange(60), 5)
    draws = Resamples.of(rng.normal(size=60), 1)
    found = draws.quantiles(Series(values, owner), (0.5, 0.99))
    for at in (0, 50):
        drawn = np.sort(np.repeat(values, draws.counts[at][owner]))
        assert found[:, at].tolist() == [nearest_rank(drawn, 0.5), nearest_rank(drawn, 0.99)]


def test_very_many_values_have_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MAX_WORK", 0)
    values = np.random.default_rng(4).exponential(size=400)
    draws = Resamples.of(values, 1)
    found = draws.quantiles(Series(values, np.arange(400)), (0.5,))
    assert len(draws.counts) > compare.MIN_RESAMPLES
    assert np.isfinite(found[0]).sum() == compare.MIN_RESAMPLES


def test_failures_are_in_the_quantiles() -> None:
    values = np.array([1.0] * 90 + [math.inf] * 10)
    found = Resamples.of(values, 1).quantiles(Series(values, np.arange(100)), (0.5, 0.99))
    assert (found[0] == 1.0).mean() > 0.95
    assert np.isinf(found[1]).mean() > 0.5


def test_no_values_have_no_quantile() -> None:
    draws = Resamples.of(np.ones(10), 1)
    assert np.isnan(draws.quantiles(Series(np.empty(0), np.empty(0, np.int64)), (0.5,))).all()
    assert ratio_interval(np.array([math.nan]), np.array([1.0]), 0.99) is None


def test_nearest_rank_is_that_of_the_summary() -> None:
    values = np.random.default_rng(6).normal(size=137)
    summary = MeasureDistribution.of(values)
    for share, figure in ((0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)):
        assert nearest_rank(np.sort(values), share) == figure


def test_infinite_by_infinite_is_no_change() -> None:
    endless, one = np.full(100, math.inf), np.ones(100)
    assert ratio_interval(endless, endless, 0.99) == (1.0, 1.0)
    assert ratio_interval(one, endless, 0.99) == (math.inf, math.inf)
    assert ratio_interval(endless, one, 0.99) == (0.0, 0.0)


def test_blocks_grow_with_the_dependence_of_neighbours() -> None:
    rng = np.random.default_rng(7)
    alone, walk = rng.normal(size=1000), np.zeros(1000)
    for at in range(1, 1000):
        walk[at] = 0.9 * walk[at - 1] + rng.normal()
    assert block_length(alone) == 10
    assert block_length(walk) > 20
    assert block_length(np.ones(3)) == 1
    assert block_length(np.array([math.inf, 1.0, 2.0, 3.0])) == 1


def _autoregression(seed: int, n: int, mean: float) -> Floats:
    rng = np.random.default_rng(seed)
    noise, values = rng.normal(size=n), np.zeros(n)
    for at in range(1, n):
        values[at] = 0.7 * values[at - 1] + noise[at]
    return mean + values


def test_the_interval_of_a_mean_covers_where_neighbours_depend_on_one_another() -> None:
    """For 100 pairs that do not differ, 95 % intervals contain 1 nearly that often; without blocks they would not."""
    held = 0
    for seed in range(100):
        pair = [_autoregression(2 * seed + at, 400, 10.0) for at in (0, 1)]
        drawn = [Resamples.of(values, seed).means(Series(values, np.arange(400))) for values in pair]
        interval = ratio_interval(drawn[0], drawn[1], 0.95)
        assert interval is not None
        held += interval[0] <= 1 <= interval[1]
    assert held >= 87
    assert held == pytest.approx(95, abs=8)
