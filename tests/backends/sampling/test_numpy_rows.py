"""RowOps in NumPy against plain definitions, with ties, infinities and awkward sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.backends.sampling.naive import draw, top, weight_sum
from twofold.backends.sampling.base import RUN, NumpyRows

ROWS = NumpyRows()


def make_row(vocab: int, seed: int, kinds: int | None = None) -> NDArray[np.float32]:
    """Random logits; with ``kinds`` only so many different values, so that there are ties."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(vocab) * 4).astype(np.float32)
    return row if kinds is None else np.sort(row)[rng.integers(0, min(kinds, vocab), vocab)]


def sorted_ids(row: NDArray[np.float32]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([1, 2, 63, 64, 257, 1021, 4099]),
    st.integers(0, 99),
    st.sampled_from([1, 2, 40, 1024, 5000]),
    st.sampled_from([None, 1, 3]),
)
def test_top_is_the_start_of_the_sorted_row(vocab: int, seed: int, count: int, kinds: int | None) -> None:
    row = make_row(vocab, seed, kinds)
    ids, values = top(ROWS, row, min(count, vocab))
    assert ids.dtype == np.int32
    assert ids.tolist() == sorted_ids(row)[:count]
    np.testing.assert_array_equal(values, row[ids])


def test_top_treats_both_zeros_as_equal_and_sinks_infinities() -> None:
    row = np.array([0.0, -0.0, -np.inf, 1.0, 0.0, -2.0], np.float32)
    assert top(ROWS, row, 6)[0].tolist() == [3, 0, 1, 4, 5, 2]


def test_argmax_takes_the_lowest_id_among_equals() -> None:
    logits = np.array([[1, 3, 3], [2, 2, 2], [-1, -5, -1]], np.float32)
    ids, values = ROWS.argmax(logits)
    assert ids.tolist() == [1, 0, 0]
    assert values.tolist() == [3, 2, -1]


@pytest.mark.parametrize("vocab", [1, 7, RUN - 1, RUN, RUN + 1, 3 * RUN + 17])
def test_log_sum_exp(vocab: int) -> None:
    logits = np.stack([make_row(vocab, 1), make_row(vocab, 2) + np.float32(900)])
    exact = [np.log(np.sum(np.exp(row.astype(np.float64) - row.max()))) + row.max() for row in logits]
    np.testing.assert_allclose(ROWS.log_sum_exp(logits), exact, rtol=1e-6)


def test_rows_do_not_depend_on_their_company() -> None:
    logits = np.stack([make_row(1021, seed) for seed in range(8)])
    together = ROWS.log_sum_exp(logits)
    alone = [ROWS.log_sum_exp(row[None])[0] for row in logits]
    assert together.tolist() == alone


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 5, RUN, RUN + 1, 1500]), st.integers(0, 99), st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_running_sum(vocab: int, seed: int, uniform: float) -> None:
    row = make_row(vocab, seed)
    weights = np.exp((row - row.max()).astype(np.float64) / 0.7)
    ends = weights.cumsum() / weights.sum()
    token = draw(ROWS, row, float(row.max()), 0.7, uniform)
    assert ends[token] >= uniform - 1e-6
    assert token == 0 or ends[token - 1] <= uniform + 1e-6


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_draw_never_takes_what_has_no_weight(uniform: float) -> None:
    row = np.full(2 * RUN, -np.inf, np.float32)
    row[[3, RUN - 2]] = 1.0
    assert draw(ROWS, row, 1.0, 1.0, uniform) in {3, RUN - 2}


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-10])
def test_the_coldest_draw_is_the_argmax(temperature: float) -> None:
    row = make_row(700, 3)
    assert draw(ROWS, row, float(row.max()), temperature, 0.999) == int(row.argmax())


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 31, 32, 33, 1000]), st.integers(0, 40), st.integers(0, 99))
def test_mask(vocab: int, words: int, seed: int) -> None:
    logits = np.stack([make_row(vocab, seed + index) for index in range(3)])
    masks = np.random.default_rng(seed).integers(0, 2**32, (2, words), np.uint32)
    for row, mask, out in zip(logits[[0, 2]], masks, ROWS.mask(logits, np.array([0, 2]), masks), strict=True):
        for token in range(vocab):
            allowed = token < 32 * words and int(mask[token // 32]) >> token % 32 & 1
            assert out[token] == (row[token] if allowed else -np.inf)


def test_weight_sum() -> None:
    row = make_row(1500, 5)
    exact = np.exp((row.astype(np.float64) - row.max()) / 1.7).sum()
    assert weight_sum(ROWS, row, float(row.max()), 1.7) == pytest.approx(exact, rel=1e-6)
