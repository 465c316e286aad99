"""Codes of keys and values: how near they are, what they depend on, and factors that even out biases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twofold.backends.kv_codes import (
    HeadCodes,
    code_8,
    code_v4,
    finite,
    key_factors,
    query_codes,
    spread,
    spread_back,
)
from twofold.core.model import RopePairs, RopeSpec

Floats = NDArray[np.float32]
HEADS = st.sampled_from([32, 64, 96, 128, 256])
SIZES = st.floats(-20, 20).map(lambda power: 10**power)


def heads(seed: int, head_dim: int, size: float, outliers: int = 0) -> Floats:
    """Three heads of random numbers, of which the first few are fifty times as large."""
    x = np.random.default_rng(seed).standard_normal((3, head_dim)) * size
    x[:, :outliers] *= 50
    return x.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 99), head_dim=HEADS, size=SIZES, outliers=st.integers(0, 4))
def test_codes_are_within_half_a_step(seed: int, head_dim: int, size: float, outliers: int) -> None:
    x = spread(heads(seed, head_dim, size, outliers))
    largest = np.abs(x).max(axis=-1, keepdims=True)
    assert (np.abs(code_8(x).decoded() - x) <= 0.51 * largest / 127).all()
    groups = x.reshape(3, -1, 32)
    span = groups.max(axis=-1) - groups.min(axis=-1)
    # A step is rounded up, by a whole unit at most; a minimum is off by two units at most.
    bound = 0.51 * span / 15 + 3.1 * largest / 508
    assert (np.abs(code_v4(x).decoded() - x).reshape(3, -1, 32) <= bound[..., None]).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), head_dim=HEADS, size=SIZES)
def test_codes_have_their_ranges(seed: int, head_dim: int, size: float) -> None:
    x = spread(heads(seed, head_dim, size, 1))
    assert np.abs(code_8(x).codes.astype(int)).max() == 127
    small = code_v4(x)
    assert small.step is not None
    assert small.minimum is not None
    assert 0 <= small.codes.min() < 2
    assert 13 < small.codes.max() <= 15
    assert 0 < small.step.min() <= small.step.max() <= 69
    numbers = np.repeat(small.step, 32, -1).astype(int) * 15 + 4 * np.repeat(small.minimum, 32, -1).astype(int)
    assert np.abs(numbers).max() * 32767 * 64 < 2**31, "sums of a chunk are below 2³¹"


@pytest.mark.parametrize("code", [code_8, code_v4])
def test_codes_depend_on_one_head_of_one_position(code: Callable[[Floats], HeadCodes]) -> None:
    x = spread(heads(1, 64, 1.0))
    for row, expected in zip(x, code(x).decoded(), strict=True):
        np.testing.assert_array_equal(code(row[None]).decoded()[0], expected)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 256])
def test_spreading_keeps_products_and_is_undone(head_dim: int) -> None:
    x, y = heads(1, head_dim, 1.0), heads(2, head_dim, 1.0)
    block = head_dim & -head_dim
    np.testing.assert_allclose(spread_back(spread(x)), x, atol=1e-5)
    np.testing.assert_allclose((spread(x) * spread(y)).sum(-1) / block, (x * y).sum(-1), atol=1e-4)


def test_zeros_and_numbers_that_are_none_stay_finite() -> None:
    x = np.array([[0.0] * 32, [np.inf] + [0.0] * 31, [np.nan, -np.inf] + [1e38] * 30], np.float32)
    for code in (code_8, code_v4):
        decoded = code(spread(finite(x))).decoded()
        assert np.isfinite(decoded).all()
        assert (decoded[0] == 0).all()
    assert (query_codes(x[:1]) == 0).all()


@pytest.mark.parametrize("pairs", ["halves", "adjacent"])
def test_factors_even_out_biases_and_cancel_in_products(pairs: RopePairs) -> None:
    """One pair of the keys' biases is 158, as in Qwen2.5's second layer: the error of scores more than halves."""
    rope = RopeSpec(64, 1e4, pairs)
    rng = np.random.default_rng(4)
    key_bias, query_bias = rng.standard_normal((2, 64)).astype(np.float32), np.zeros((4, 64), np.float32)
    key_bias[:, 5] = 158
    factors = key_factors(key_bias, query_bias, rope, norm=False)
    partner = 37 if pairs == "halves" else 4
    assert (np.log2(factors) % 1 == 0).all()
    assert (factors[:, 5] == factors[:, partner]).all()
    assert (factors[:, 5] >= 8 * np.median(factors)).all()
    k = rng.standard_normal((50, 2, 64)).astype(np.float32) + key_bias
    q = rng.standard_normal((2, 64)).astype(np.float32)
    exact = (k.astype(np.float64) * q).sum(-1)
    np.testing.assert_allclose((k / factors * (q * factors)).sum(-1), exact, rtol=1e-4, atol=1e-3)

    def error(by: Floats) -> float:
        scores = (code_8(spread(k / by)).decoded() * query_codes(spread(q * by))).sum(-1) / 64
        return float(np.sqrt(np.mean((scores - exact) ** 2)))

    assert error(factors) < 0.5 * error(np.ones_like(factors))


def test_factors_by_norms_divide_large_keys_and_leave_equal_ones() -> None:
    rope = RopeSpec(64, 1e4, "halves")
    key, query = np.ones((1, 64), np.float32), np.ones((2, 64), np.float32)
    assert (key_factors(key, query, rope, norm=True) == 1).all()
    assert (key_factors(key + 4, query + 1, rope, norm=True) == 1).all(), "the scale of codes has what all share"
    key[0, 3], key[0, 9], query[:, 20] = 32, 0, 16
    factors = key_factors(key, query, rope, norm=True)
    assert factors[0, 3] == factors[0, 35] >= 4
    assert factors[0, 20] == factors[0, 52] <= 0.5
    assert np.isfinite(factors).all()
