"""Penalties, bias and filters against the naive rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.backends.sampling.naive import mask_of, naive_distribution, naive_logits
from twofold.backends.sampling import filters
from twofold.backends.sampling.base import F32, F64, NumpyRows, SampleRequest
from twofold.backends.sampling.filters import Candidates, adjusted, candidates, changes_logits, filtered
from twofold.core.params import SamplingParams

VOCAB = 97
ROWS = NumpyRows()
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def make_row(seed: int, vocab: int = VOCAB, spread: float = 3) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def kept(row: F32, params: SamplingParams) -> tuple[NDArray[np.int32], F64]:
    """The tokens of one row that the filters keep, and the running sums of their weights."""
    (found,) = candidates(ROWS, row[None], np.array([0]), row[None].max(axis=1), [params])
    return found.ids[0, : found.kept[0]], found.sums[0, : found.kept[0]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 50),
    tokens,
    tokens,
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([-1.0, 0.0, 0.7]),
    st.sampled_from([-0.5, 0.0, 0.25]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 100.0]), max_size=5),
    st.sampled_from([(), (4,), (4, 90)]),
    st.sampled_from([None, range(0), range(3, 90, 2)]),
)
def test_adjusted_logits(
    seed: int,
    prompt: list[int],
    answer: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    suppressed: tuple[int, ...],
    allowed: range | None,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias
    )
    mask = None if allowed is None else mask_of(VOCAB, allowed)
    request = SampleRequest(params, 0, 0, prompt, answer, suppressed, mask)
    row = make_row(seed)
    before = row.copy()
    np.testing.assert_allclose(
        adjusted(ROWS, row[None], np.array([0]), [request])[0], naive_logits(row, request), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(row, before)


def test_only_what_changes_logits_copies_them() -> None:
    assert not changes_logits(SampleRequest(SamplingParams(temperature=0.5, top_k=3), 0, 0))
    assert changes_logits(SampleRequest(SamplingParams(), 0, 0, suppressed=(1,)))
    assert changes_logits(SampleRequest(SamplingParams(logit_bias={1: 1}), 0, 0))
    assert changes_logits(SampleRequest(SamplingParams(presence_penalty=0.1), 0, 0))
    assert changes_logits(SampleRequest(SamplingParams(), 0, 0, mask=mask_of(VOCAB, range(VOCAB))))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 200),
    st.sampled_from([30, 97, 3000]),
    st.sampled_from([0.2, 1.0, 3.0]),
    st.sampled_from([0, 1, 7, 5000]),
    st.sampled_from([1.0, 0.0, 0.01, 0.5, 0.9, 0.999]),
    st.sampled_from([0.0, 0.001, 0.1, 1.0]),
)
def test_candidates(seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = make_row(seed, vocab)
    exact = naive_distribution([float(value) for value in row], params)
    if not filtered(params):
        assert (exact > 0).all()
        return
    ids, sums = kept(row, params)
    assert set(ids.tolist()) == set(np.flatnonzero(exact).tolist())
    np.testing.assert_allclose(np.diff(sums, prepend=0.0) / sums[-1], exact[ids], rtol=1e-4, atol=1e-12)


def test_equally_likely_tokens_stay_by_lower_id() -> None:
    row = np.zeros(10, np.float32)
    assert kept(row, SamplingParams(top_k=3))[0].tolist() == [0, 1, 2]
    assert kept(row, SamplingParams(top_p=0.35))[0].tolist() == [0, 1, 2, 3]


def test_the_token_that_reaches_top_p_is_the_last() -> None:
    assert kept(np.zeros(4, np.float32), SamplingParams(top_p=0.5))[0].tolist() == [0, 1]
    assert kept(np.zeros(4, np.float32), SamplingParams(top_p=0))[0].tolist() == [0]


def test_top_p_measures_what_top_k_kept() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert kept(row, SamplingParams(top_k=2, top_p=0.55))[0].tolist() == [0]
    assert kept(row, SamplingParams(top_p=0.55))[0].tolist() == [0, 1]


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-53])
def test_pick_never_takes_weight_zero(uniform: float) -> None:
    ids, sums = np.array([[5, 6, 7]], np.int32), np.array([[1.0, 1.0, 1.0]])
    assert Candidates(np.array([0]), ids, sums, np.array([3])).pick(np.array([uniform])).tolist() == [5]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6))
def test_rows_are_filtered_alike_in_one_pass_in_many_and_alone(rows: list[tuple[float, float, float]]) -> None:
    params = [SamplingParams(temperature=t, top_p=p, min_p=m) for t, p, m in rows]
    logits = np.stack([make_row(index, 2000) for index in range(len(rows))])
    at = np.arange(len(rows))
    for limit in (1 << 20, 3000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filters, "MAX_INSPECTED", limit)
            together = list(candidates(ROWS, logits, at, logits.max(axis=1), params))
        assert sorted(row for found in together for row in found.rows.tolist()) == at.tolist()
        for found in together:
            for row, ids, sums, count in zip(*found, strict=True):
                alone = kept(logits[row], params[row])
                np.testing.assert_array_equal(ids[:count], alone[0])
                np.testing.assert_array_equal(sums[:count], alone[1])
