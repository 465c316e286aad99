from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.bench.metrics.distribution import NOTHING, PER_MILLE, MeasureDistribution, needed, wilson


def test_percentiles_are_values_by_nearest_rank() -> None:
    found = MeasureDistribution.of([float(value) for value in range(1, 101)])
    assert (found.p50, found.p90, found.p95, found.p99, found.p99_9) == (50, 90, 95, 99, 100)
    assert (found.n, found.failed, found.min, found.max, found.mean) == (100, 0, 1, 100, 50.5)
    assert found.std == pytest.approx(math.sqrt((100**2 - 1) / 12))


def test_failures_are_infinite_and_out_of_the_mean() -> None:
    found = MeasureDistribution.of([1.0, 3.0, math.inf, math.inf])
    assert (found.n, found.failed, found.mean, found.p50, found.p90) == (4, 2, 2.0, 3.0, math.inf)


def test_nothing_and_only_failures() -> None:
    assert MeasureDistribution.of([None, None]) == NOTHING
    found = MeasureDistribution.of([math.inf])
    assert (found.n, found.failed, found.mean, found.std, found.p50) == (1, 1, None, None, math.inf)


@given(st.lists(st.floats(0, 10) | st.just(math.inf), min_size=1), st.sampled_from(list(PER_MILLE)))
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(values: list[float], name: str) -> None:
    found, per_mille = MeasureDistribution.of(values).at(name), PER_MILLE[name]
    assert found is not None
    assert found in values
    assert sum(value <= found for value in values) * 1000 >= per_mille * len(values)
    assert sum(value < found for value in values) * 1000 < max(1, per_mille) * len(values)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=40))
def test_weights_are_repetitions(pairs: list[tuple[float, int]]) -> None:
    values, weights = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    weighted = MeasureDistribution.weighted(values, weights)
    repeated = MeasureDistribution.of(np.repeat(values, weights.astype(int)))
    assert (weighted.n, weighted.p50, weighted.p99, weighted.max) == (
        repeated.n,
        repeated.p50,
        repeated.p99,
        repeated.max,
    )
    assert weighted.mean == pytest.approx(repeated.mean)
    assert weighted.std == pytest.approx(repeated.std, abs=1e-6)


def test_ranks_are_exact_where_floats_are_not() -> None:
    def ranks(n: int) -> list[float | None]:
        found = MeasureDistribution.of([float(at) for at in range(n)])
        return [found.at(name) for name in ("p50", "p90", "p95", "p99", "p99_9")]

    assert ranks(1000)[-1] == 998
    assert ranks(1)[0] == 0
    assert ranks(10) == [4, 8, 9, 9, 9]


def test_wilson_interval_of_known_cases() -> None:
    # The score interval of 9 of 10 in textbooks: 0.5958 to 0.9821.
    assert wilson(9, 10).low == pytest.approx(0.5958, abs=1e-4)
    assert wilson(9, 10).high == pytest.approx(0.9821, abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert wilson(10, 10).high == 1.0
    assert wilson(0, 10).low == 0.0


def test_how_many_requests_a_percentile_needs() -> None:
    assert (needed(0.99), needed(0.999)) == (299, 2995)
