"""Draws: their distribution, their independence of the batch, and log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sampling.naive import naive_distribution, naive_logits
from twofold.core.errors import ModelError
from twofold.core.params import SamplingParams
from twofold.core.step import DrawRequest
from twofold.sampling.numpy_rows import NumpyRows
from twofold.sampling.sampler import Sampler

SAMPLER = Sampler(NumpyRows())
VOCAB = 40
DRAWS = 3000


def make_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 2).astype(np.float32)


def chi_square_limit(degrees: int) -> float:
    """What a chi-square of so many degrees exceeds once in about 30,000 times (Wilson & Hilferty 1931)."""
    return float(degrees * (1 - 2 / (9 * degrees) + 4.0 * np.sqrt(2 / (9 * degrees))) ** 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 12, "top_p": 0.9},
        {"top_p": 0.95, "min_p": 0.05, "temperature": 1.4},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.3, "presence_penalty": 0.4},
        {"logit_bias": {3: 4.0, 5: -100.0}, "top_k": 8},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    row = make_logits(1)
    requests = [DrawRequest(params, 7, position, (1, 2, 3), (3, 3, 9)) for position in range(DRAWS)]
    exact = naive_distribution(naive_logits(row[0], requests[0]), params)
    drawn = [SAMPLER.draw(row, [0], [request])[0] for request in requests]
    counts = np.bincount(drawn, minlength=VOCAB)
    assert not counts[exact == 0].any()
    order = np.argsort(exact)[::-1]
    expected, observed = _pooled(exact[order] * DRAWS, counts[order])
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < chi_square_limit(len(expected) - 1)


def _pooled(
    expected: NDArray[np.float64], observed: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The rare tail as one class, so that every class expects at least five draws."""
    keep = max(1, int((expected >= 5).sum()) - 1)
    return np.append(expected[:keep], expected[keep:].sum()), np.append(observed[:keep], observed[keep:].sum())


def test_greedy_takes_the_largest_and_among_equals_the_lowest() -> None:
    logits = make_logits(3)
    logits[1, [4, 9]] = 50
    greedy = DrawRequest(SamplingParams(temperature=0), 0, 0)
    assert SAMPLER.draw(logits, [0, 1, 2], [greedy] * 3) == [int(np.argmax(row)) for row in logits]
    assert SAMPLER.draw(logits, [1], [greedy]) == [4]


def test_greedy_obeys_bias_and_suppression() -> None:
    logits = make_logits(1)
    best, second = np.argsort(-logits[0])[:2].tolist()
    plain = SamplingParams(temperature=0)
    assert SAMPLER.draw(logits, [0], [DrawRequest(plain, 0, 0, suppressed=(best,))]) == [second]
    assert SAMPLER.draw(logits, [0], [DrawRequest(SamplingParams(temperature=0, logit_bias={7: 100}), 0, 0)]) == [7]


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_bias_may_lift_a_token_far_above_the_others(options: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.3, logit_bias={7: 100.0}, **options)
    drawn = [SAMPLER.draw(make_logits(1), [0], [DrawRequest(params, 0, position)])[0] for position in range(20)]
    assert drawn == [7] * 20


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = make_logits(24, vocab=1500)
    kinds = [{}, {"temperature": 0}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.2}, {"repetition_penalty": 1.2}]
    requests = [
        DrawRequest(SamplingParams(**kinds[index % len(kinds)]), index, index * 3, (1, 2), (5,))  # type: ignore[arg-type]
        for index in range(24)
    ]
    together = SAMPLER.draw(logits, range(24), requests)
    assert together == [SAMPLER.draw(logits, [index], [request])[0] for index, request in enumerate(requests)]
    some = [1, 2, 5, 11, 23]
    assert SAMPLER.draw(logits, some, [requests[index] for index in some]) == [together[index] for index in some]


def test_seed_and_position_matter() -> None:
    logits = make_logits(1, vocab=5000)
    params = SamplingParams(temperature=3)
    drawn = {SAMPLER.draw(logits, [0], [DrawRequest(params, s, p)])[0] for s in range(5) for p in range(5)}
    assert len(drawn) > 15


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_model_is_reported(bad: float) -> None:
    logits = make_logits(2)
    logits[1, 5] = bad
    with pytest.raises(ModelError, match="not finite"):
        SAMPLER.draw(logits, [0, 1], [DrawRequest(SamplingParams(), 0, 0)] * 2)


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
