from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.bench.draw.form import duration, number, share


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (12, "12"),
        (999.4, "999"),
        (999.6, "1k"),
        (1500, "1.5k"),
        (20e6, "20M"),
        (-1500, "-1.5k"),
        (1e-7, "0.0000001"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_numbers_are_short(value: float | None, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0"),
        (1.25, "1.25 s"),
        (100, "100 s"),
        (0.38, "380 ms"),
        (0.9996, "1 s"),
        (12.5e-6, "12.5 µs"),
        (0.0009999, "1 ms"),
        (math.inf, "∞"),
        (None, "–"),
    ],
)
def test_durations_choose_their_unit(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0%"), (0.5, "50%"), (0.7123, "71.2%"), (0.9995, "99.95%"), (1, "100%"), (None, "–")],
)
def test_shares_are_percentages(value: float | None, words: str) -> None:
    assert share(value) == words


@given(st.floats())
def test_every_float_has_a_form(value: float) -> None:
    for form in (number, duration, share):
        assert "e" not in form(value).removesuffix("e")
