"""Percentiles of a sliding window: their error and their memory are bounded."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.observe.metrics.recent import (
    BOUNDS,
    ERROR,
    LONGEST_S,
    SHORTEST_S,
    SlidingSums,
    buckets,
    percentiles,
)

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(SHORTEST_S, LONGEST_S), min_size=1, max_size=300))
def test_percentiles_are_within_their_error(values: list[float]) -> None:
    window = SlidingSums[int]()
    window.add(buckets(values), 0.0)
    found = percentiles(window.sums(0.0), SHARES)
    exact = np.quantile(values, SHARES, method="inverted_cdf")
    assert found == pytest.approx(exact, rel=ERROR + 1e-9)


def test_values_outside_of_the_range_count_as_its_nearest_end() -> None:
    window = SlidingSums[int]()
    window.add(buckets([0.0, 1e9]), 0.0)
    assert percentiles(window.sums(0.0), (0.5, 1.0)) == pytest.approx([SHORTEST_S, BOUNDS[-1]], rel=ERROR)


def test_an_empty_window_has_no_percentiles() -> None:
    assert percentiles(SlidingSums[int]().sums(0.0), SHARES) == []


def test_sums_cover_only_the_window() -> None:
    sums, random, now = SlidingSums[int](window_s=10.0, slots=5), Random(1), 100.0
    given_: list[tuple[float, int, float]] = []
    for _ in range(500):
        now += random.random()
        key, amount = random.randrange(4), random.random()
        sums.add({key: amount}, now)
        given_.append((now, key, amount))
        start = (int(now / 2.0) - 4) * 2.0
        kept = {k for at, k, _ in given_ if at >= start}
        assert sums.sums(now) == pytest.approx(
            {key: sum(a for at, k, a in given_ if k == key and at >= start) for key in kept}
        )
    assert sums.sums(now + 11) == {}


def test_memory_has_a_bound() -> None:
    window, random = SlidingSums[int](), Random(2)
    tracemalloc.start()
    for second in range(300):
        window.add(buckets(10 ** random.uniform(-6, 6) for _ in range(100)), float(second))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 8 << 20
