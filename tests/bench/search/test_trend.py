from __future__ import annotations

import numpy as np
import pytest

from twofold.bench.search import Trend, combined, correlation_time, student, trend


def test_independent_values_count_in_full() -> None:
    values = np.random.default_rng(1).normal(size=5000)
    assert correlation_time(values) == pytest.approx(1.0, abs=0.2)
    assert correlation_time(np.ones(100)) == 1.0
    assert correlation_time(np.empty(0)) == 1.0


def test_the_correlation_time_of_an_autoregression_is_known() -> None:
    rng, values = np.random.default_rng(2), np.zeros(50_000)
    for at in range(1, len(values)):
        values[at] = 0.8 * values[at - 1] + rng.normal()
    assert correlation_time(values) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.15)


def test_a_line_is_found_and_is_sure() -> None:
    rng, times = np.random.default_rng(3), np.linspace(0.0, 30.0, 300)
    found = trend(times, 1.0 + 0.1 * times + rng.normal(0.0, 0.2, 300))
    assert found is not None
    assert found.slope == pytest.approx(0.1, abs=4 * found.error)
    assert found.rises(0.95)


def test_noise_rises_seldom() -> None:
    times = np.linspace(0.0, 30.0, 200)
    risen = 0
    for seed in range(200):
        found = trend(times, np.random.default_rng(seed).normal(size=200))
        risen += found is not None and found.rises(0.95)
    assert risen <= 14


def test_too_few_values_or_one_moment_have_no_trend() -> None:
    assert trend(np.arange(9.0), np.arange(9.0)) is None
    assert trend(np.zeros(20), np.arange(20.0)) is None


def test_the_error_grows_where_neighbours_depend_on_one_another() -> None:
    times = np.linspace(0.0, 30.0, 200)
    noise = np.random.default_rng(4).normal(size=200)
    alone, dependent = trend(times, noise), trend(times, np.repeat(noise[:20], 10))
    assert alone is not None
    assert dependent is not None
    assert dependent.error > 2 * alone.error
    assert dependent.independent < 60


def test_rounds_are_weighted_by_their_precision() -> None:
    both = combined([Trend(0.0, 1.0, 12.0), Trend(1.0, 0.1, 12.0)])
    assert both is not None
    assert both.slope == pytest.approx(100 / 101)
    assert both.error < 0.1
    assert both.independent == 22.0
    assert combined([]) is None


def test_quantiles_of_student() -> None:
    # From tables of Student's t, two-sided 95 %.
    assert student(0.95, 5) == pytest.approx(2.571, rel=0.005)
    assert student(0.95, 30) == pytest.approx(2.042, rel=0.001)
