"""Draws: what may be drawn, their independence of the batch, log-probabilities and candidates."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.sampling.naive import mask_of
from twofold.backends.sampling.base import GREEDY, NumpyRows, SampleRequest
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ModelError
from twofold.core.params import SamplingParams

SAMPLER = Sampler(NumpyRows())
VOCAB = 40


def make_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 2).astype(np.float32)


def test_greedy_takes_the_largest_and_among_equals_the_lowest() -> None:
    logits = make_logits(3)
    logits[1, [4, 9]] = 50
    greedy = SampleRequest(SamplingParams(temperature=0), 0, 0)
    assert SAMPLER.sample(logits, [0, 1, 2], [greedy] * 3) == [int(np.argmax(row)) for row in logits]
    assert SAMPLER.sample(logits, [1], [greedy]) == [4]


def test_greedy_obeys_bias_and_suppression() -> None:
    logits = make_logits(1)
    best, second = np.argsort(-logits[0])[:2].tolist()
    plain = SamplingParams(temperature=0)
    assert SAMPLER.sample(logits, [0], [SampleRequest(plain, 0, 0, suppressed=(best,))]) == [second]
    assert SAMPLER.sample(logits, [0], [SampleRequest(SamplingParams(temperature=0, logit_bias={7: 100}), 0, 0)]) == [7]


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_bias_may_lift_a_token_far_above_the_others(options: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.3, logit_bias={7: 100.0}, **options)
    drawn = [SAMPLER.sample(make_logits(1), [0], [SampleRequest(params, 0, position)])[0] for position in range(20)]
    assert drawn == [7] * 20


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = make_logits(24, vocab=1500)
    kinds = [{}, {"temperature": 0}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.2}, {"repetition_penalty": 1.2}]
    requests = [
        SampleRequest(SamplingParams(**kinds[index % len(kinds)]), index, index * 3, (1, 2), (5,))  # type: ignore[arg-type]
        for index in range(24)
    ]
    together = SAMPLER.sample(logits, range(24), requests)
    assert together == [SAMPLER.sample(logits, [index], [request])[0] for index, request in enumerate(requests)]
    some = [1, 2, 5, 11, 23]
    assert SAMPLER.sample(logits, some, [requests[index] for index in some]) == [together[index] for index in some]


def test_seed_and_position_matter() -> None:
    logits = make_logits(1, vocab=5000)
    params = SamplingParams(temperature=3)
    drawn = {SAMPLER.sample(logits, [0], [SampleRequest(params, s, p)])[0] for s in range(5) for p in range(5)}
    assert len(drawn) > 15


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_is_reported_and_the_others_are_drawn(bad: float) -> None:
    logits = make_logits(2)
    logits[1, 5] = bad
    request = SampleRequest(SamplingParams(), 0, 0)
    (alone,) = SAMPLER.sample(logits, [0], [request])
    first, second = SAMPLER.sample(logits, [0, 1], [request] * 2)
    assert first == alone
    assert isinstance(second, ModelError)
    assert "not finite" in str(second)
    assert isinstance(SAMPLER.candidates(logits[1], SampleRequest(SamplingParams(), 0, 0, candidates=2)), ModelError)


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 3}, {"logit_bias": {0: 100}}, {"top_p": 0.5}])
def test_only_what_the_mask_allows_is_drawn(options: dict[str, Any]) -> None:
    allowed = [3, 31, 32, 39]
    params, mask = SamplingParams(**{"temperature": 3.0, **options}), mask_of(VOCAB, allowed)
    requests = [SampleRequest(params, 0, position, suppressed=(39,), mask=mask) for position in range(60)]
    drawn = {SAMPLER.sample(make_logits(1), [0], [request])[0] for request in requests}
    assert drawn <= {3, 31, 32}
    if options == {"temperature": 0}:
        assert drawn == {max((3, 31, 32), key=lambda token: make_logits(1)[0, token])}


def test_tokens_past_the_mask_are_forbidden() -> None:
    logits = make_logits(1)
    logits[0, 35] = 50
    greedy = SamplingParams(temperature=0)
    assert SAMPLER.sample(logits, [0], [SampleRequest(greedy, 0, 0, mask=mask_of(32, [6, 7]))])[0] in {6, 7}


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"min_p": 0.1}])
def test_a_mask_that_leaves_nothing_is_an_error_of_its_request(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    nothing = SampleRequest(params, 0, 0, suppressed=(4,), mask=mask_of(VOCAB, [4]))
    error, token = SAMPLER.sample(make_logits(2), [0, 1], [nothing, SampleRequest(params, 0, 0)])
    assert isinstance(error, ModelError)
    assert "No token satisfies" in str(error)
    assert isinstance(token, int)
    (error,) = SAMPLER.sample(make_logits(1), [0], [SampleRequest(params, 0, 0, suppressed=range(VOCAB))])
    assert "Every token" in str(error)


def test_candidates_are_the_most_likely_tokens() -> None:
    row = make_logits(1)[0]
    row[[4, 9]] = row.max()
    params = SamplingParams(temperature=0.2, presence_penalty=2, logit_bias={0: 100})
    found = SAMPLER.candidates(row, SampleRequest(params, 0, 0, completion=(4,), candidates=5))
    assert found == SAMPLER.score(row[None], [0], 5)[0].top


def test_candidates_leave_out_what_may_not_be_drawn_but_keep_logprobs_and_ranks() -> None:
    row = make_logits(1)[0]
    row[[4, 9, 11]] = row.max()
    everything = SAMPLER.score(row[None], [0], VOCAB)[0].top
    allowed = [4, *range(10, 31)]
    request = SampleRequest(SamplingParams(), 0, 0, suppressed=(12,), mask=mask_of(VOCAB, allowed), candidates=6)
    wanted = [one for one in everything if one.token in allowed and one.token != 12]
    assert SAMPLER.candidates(row, request) == tuple(wanted[:6])
    assert SAMPLER.candidates(row, replace(request, candidates=50)) == tuple(wanted)
    assert isinstance(SAMPLER.candidates(row, replace(request, mask=mask_of(VOCAB, []))), ModelError)


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = make_logits(2)
    exact = np.log(np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    first, second = SAMPLER.score(logits, [11, 0], 4)
    order = np.argsort(-logits[0], kind="stable")
    assert first.chosen.logprob == pytest.approx(exact[0, 11], abs=1e-6)
    assert first.chosen.rank == 1 + order.tolist().index(11)
    assert [one.token for one in first.top] == order[:4].tolist()
    assert [one.rank for one in first.top] == [1, 2, 3, 4]
    assert [one.logprob for one in first.top] == pytest.approx(exact[0, order[:4]], abs=1e-6)
    assert second.chosen.token == 0


def test_no_alternatives_and_ties() -> None:
    logits = np.zeros((1, 5), np.float32)
    (position,) = SAMPLER.score(logits, [3], 0)
    assert position.top == ()
    assert position.chosen.rank == 4
    assert position.chosen.logprob == pytest.approx(-np.log(5))


def test_more_alternatives_than_tokens() -> None:
    (position,) = SAMPLER.score(np.zeros((1, 3), np.float32), [0], 20)
    assert len(position.top) == 3


class CountedRows(NumpyRows):
    """Counts the calls of each operation."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in ("argmax", "top", "weight_sums", "draw", "mask"):
            self.calls[name] += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"top_k": 7},
        {"top_p": 0.9},
        {"min_p": 0.2, "top_p": 0.8},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4, "top_k": 7},
        {"logit_bias": {3: 2.0}, "temperature": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_rows_are_sampled_together(rules: dict[str, Any], masked: bool) -> None:
    """As many operations on 30 rows as on one, and the tokens of one; also next to a broken and a greedy row."""
    logits = make_logits(30, vocab=2500) * 4
    logits[1, 5] = np.nan
    masks = [mask_of(2500, range(index, 2500, 2)) for index in range(30)]
    requests = [
        SampleRequest(
            SamplingParams(**({"temperature": 0.5 + index / 10} | rules)),
            index,
            3 * index,
            (index, 2 * index),
            (7, 7),
            mask=masks[index] if masked else None,
        )
        for index in range(30)
    ]
    requests[2] = GREEDY
    rows = CountedRows()
    together = Sampler(rows).sample(logits, range(30), requests)
    assert isinstance(together[1], ModelError)
    assert together[2] == int(logits[2].argmax())
    calls = []
    for index in {*range(30)} - {1, 2}:
        one = CountedRows()
        assert [together[index]] == Sampler(one).sample(logits, [index], [requests[index]])
        calls.append(one.calls)
    assert rows.calls in calls
    assert all(one <= rows.calls for one in calls)


def test_a_row_more_costs_few_python_calls() -> None:
    """Calls of functions of any kind in a sampler, per row more that has filters: what they are grouped by."""
    logits = make_logits(32)

    class OneRow(NumpyRows):
        """Of all rows the first: the calls are those of the sampler itself."""

        def top(self, logits: Any, at: Any, count: int) -> Any:
            ids, values = super().top(logits, at[:1], count)
            return ids.repeat(len(at), 0), values.repeat(len(at), 0)

        def weight_sums(self, logits: Any, at: Any, maxima: Any, temperatures: Any) -> Any:
            return super().weight_sums(logits, at[:1], maxima[:1], temperatures[:1]).repeat(len(at))

    sampler = Sampler(OneRow())
    params = SamplingParams(top_k=20, top_p=0.9, min_p=0.01)
    calls = {rows: _calls(sampler, logits, [SampleRequest(params, 1, row) for row in range(rows)]) for rows in (16, 32)}
    assert calls[32] - calls[16] <= 16 * 12


def _calls(sampler: Sampler, logits: NDArray[np.float32], requests: list[SampleRequest]) -> int:
    count = 0

    def observe(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        sampler.sample(logits, range(len(requests)), requests)
    finally:
        sys.setprofile(before)
    return count
