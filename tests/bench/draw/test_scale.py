from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.bench.draw.chart import HUGE, Kind, LinearScale, LogScale, fit, nice_step

finite = st.floats(-1e12, 1e12)
kinds = st.sampled_from(("linear", "log"))


@pytest.mark.parametrize(("rough", "step"), [(1, 1), (1.1, 2), (3, 5), (6, 10), (0.013, 0.02), (100, 100)])
def test_steps_are_one_two_or_five(rough: float, step: float) -> None:
    assert nice_step(rough) == pytest.approx(step)


def test_linear_ends_are_round_and_hold_the_values() -> None:
    scale = fit("linear", [3, 97], None, None)
    assert (scale.low, scale.high) == (0, 100)
    assert scale.ticks(6) == (0, 20, 40, 60, 80, 100)


def test_an_end_that_is_fixed_stays() -> None:
    scale = fit("linear", [0.3], 0.0, 1.0)
    assert (scale.low, scale.high) == (0, 1)
    assert fit("linear", [5.0], 7.0, None).low == 7
    assert fit("linear", [5.0], None, 2.0).high == 2


def test_log_ticks_are_decades_with_twos_and_fives_where_there_is_room() -> None:
    assert fit("log", [0.02, 0.9], None, None).ticks(8) == pytest.approx((0.02, 0.05, 0.1, 0.2, 0.5, 1))
    assert fit("log", [1e-3, 1e6], None, None).ticks(10) == pytest.approx([10.0**power for power in range(-3, 7)])


def test_a_log_scale_has_no_position_for_zero_and_below() -> None:
    scale = LogScale(1, 100)
    assert scale.share(10) == pytest.approx(0.5)
    assert [scale.share(value) for value in (0, -1, math.inf, math.nan)] == [None] * 4
    assert [LinearScale(0, 1).share(value) for value in (math.inf, math.nan)] == [None] * 2


@given(kinds, st.lists(finite, max_size=20))
def test_every_finite_value_has_its_place(kind: Kind, values: list[float]) -> None:
    scale = fit(kind, values, None, None)
    assert scale.low < scale.high
    for value in values:
        place = scale.share(value)
        if kind == "log" and value <= 1 / HUGE:
            assert place is None
        else:
            assert place is not None
            assert -1e-6 <= place <= 1 + 1e-6


@given(kinds, st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=20), st.integers(2, 12))
def test_ticks_ascend_between_the_ends_and_are_not_many(kind: Kind, values: list[float], most: int) -> None:
    scale = fit(kind, values, None, None)
    ticks = scale.ticks(most)
    assert list(ticks) == sorted(set(ticks))
    assert 1 <= len(ticks) <= most + 5
    for tick in ticks:
        place = scale.share(tick)
        assert place is not None
        assert -1e-6 <= place <= 1 + 1e-6
