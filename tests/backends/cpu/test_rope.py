"""Rotation tables: plain, and each way of stretching a context."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twofold.core.model import FactorScaling, LinearScaling, RopeSpec, YarnScaling
from twofold.models.rope import frequencies, magnitude, rope_table


def test_the_table_holds_cosines_and_sines() -> None:
    table = rope_table(RopeSpec(8, 10_000.0, "halves"), 5)
    assert table.shape == (5, 2, 4)
    assert table.dtype == np.float32
    angle = 3 * 10_000.0 ** (-2 / 8)
    np.testing.assert_array_equal(table[3, :, 1], np.array([math.cos(angle), math.sin(angle)], np.float32))
    np.testing.assert_array_equal(table[0], [[1] * 4, [0] * 4])


def test_far_positions_keep_float64_accuracy() -> None:
    """An angle rounded to float32 would be off by 0.004 here."""
    table = rope_table(RopeSpec(2, 10_000.0, "halves"), 100_001)
    assert table[100_000, 0, 0] == np.float32(math.cos(100_000))


def test_linear_scaling_divides_positions() -> None:
    plain, scaled = (rope_table(RopeSpec(8, 500.0, "halves", s), 9) for s in (None, LinearScaling(4.0)))
    np.testing.assert_array_equal(scaled[8], plain[2])


def test_factors_divide_each_frequency_and_scale_the_table() -> None:
    rope = RopeSpec(4, 100.0, "adjacent", FactorScaling((2.0, 5.0), magnitude=1.5))
    np.testing.assert_allclose(frequencies(rope), [0.5, 0.02])
    np.testing.assert_allclose(np.linalg.norm(rope_table(rope, 7), axis=1), 1.5, rtol=1e-6)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    plain = frequencies(RopeSpec(64, 10_000.0, "halves"))
    rope = RopeSpec(64, 10_000.0, "halves", YarnScaling(4.0, 2048))
    ratio = frequencies(rope) / plain
    turns = plain * 2048 / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns > 40], 1)
    np.testing.assert_allclose(ratio[turns < 0.8], 0.25)
    assert np.all(np.diff(ratio) <= 0)
    assert magnitude(rope) == pytest.approx(0.1 * math.log(4) + 1)


def test_yarns_ramp_starts_and_ends_at_whole_pairs() -> None:
    """Pair 8.06 turns 32 times in 2048 positions, pair 20.1 once: the ramp goes from 8 to 21."""
    plain = frequencies(RopeSpec(64, 10_000.0, "halves"))
    ratio = frequencies(RopeSpec(64, 10_000.0, "halves", YarnScaling(4.0, 2048))) / plain
    np.testing.assert_allclose(ratio[8:22], 1 - 0.75 * np.arange(14) / 13)


def test_yarn_without_extrapolation_is_linear_scaling() -> None:
    yarn = RopeSpec(16, 1000.0, "halves", YarnScaling(4.0, 512, extrapolation=0.0, attention_factor=1.25))
    linear = RopeSpec(16, 1000.0, "halves", LinearScaling(4.0))
    np.testing.assert_allclose(frequencies(yarn), frequencies(linear))
    assert magnitude(yarn) == 1.25
