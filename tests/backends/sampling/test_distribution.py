"""Drawn tokens against the exact distribution: every rule, alone and together, in NumPy and by kernels.

Seeds are fixed, so a test that passes once always passes. The statistic is Pearson's chi-square over
classes; its limit is passed by chance once in about 30,000 times. That it finds a wrong distribution is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.sampling.naive import mask_of, naive_distribution, naive_logits
from twofold.backends.cpu.kernels.isa import choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.backends.cpu.logits import KernelRowOps
from twofold.backends.sampling.base import NumpyRows, RowOps, SampleRequest
from twofold.backends.sampling.philox import derive_seed
from twofold.backends.sampling.sampler import Sampler
from twofold.core.params import SamplingParams

F64 = NDArray[np.float64]
VOCAB = 2100
"""More than two blocks of the kernels, more than two runs of NumPy's sums."""
DRAWS = 1000
LEAST = 20
PROMPT, ANSWER = (1, 2, 3), (3, 3, 9)

RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4},
    {"temperature": 2.5},
    {"top_k": 5},
    {"top_k": 400},
    {"top_p": 0.6},
    {"top_p": 0.99},
    {"min_p": 0.1},
    {"repetition_penalty": 1.7},
    {"frequency_penalty": 0.9},
    {"presence_penalty": -1.1},
    {"logit_bias": {3: 2.0, 5: -100.0, 2099: 3.0}},
    {"suppressed": (3, 9, 700)},
    {"allowed": range(0, VOCAB, 3)},
    {"allowed": (3, 9, 1500, 1501, 2099)},
    {"top_k": 12, "top_p": 0.8},
    {"top_p": 0.95, "min_p": 0.05, "temperature": 1.4},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "temperature": 0.8},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.3, "presence_penalty": 0.4, "top_p": 0.9},
    {"logit_bias": {3: 2.0, 9: -1.0}, "suppressed": (1, 3), "allowed": range(1, VOCAB, 2), "top_k": 50},
    {"presence_penalty": 0.5, "temperature": 1.3, "allowed": range(VOCAB - 64), "min_p": 0.03},
]


@cache
def kernel_rows() -> RowOps:
    return KernelRowOps(Compiler(CodegenTarget.of(choose(host_features()))))


ROWS: list[Callable[[], RowOps]] = [NumpyRows, kernel_rows]


@cache
def logits() -> NDArray[np.float32]:
    """One row in which the tokens of the prompt and the answer, and some at the end, are among the likely ones."""
    row = (np.random.default_rng(0).standard_normal((1, VOCAB))).astype(np.float32)
    row[0, [1, 2, 3, 9, 2098, 2099]] = [6, 5.5, 6.5, 6, 5, 5.2]
    return row


def requests_of(rules: dict[str, Any], places: Iterable[tuple[int, int]]) -> list[SampleRequest]:
    """A request under the rules for each seed and position."""
    rules = dict(rules)
    suppressed, allowed = rules.pop("suppressed", ()), rules.pop("allowed", None)
    mask = None if allowed is None else mask_of(VOCAB, allowed)
    params = SamplingParams(**rules)
    return [SampleRequest(params, seed, place, PROMPT, ANSWER, suppressed, mask) for seed, place in places]


def draws(rows: RowOps, requests: Sequence[SampleRequest]) -> list[int]:
    """A token for each request, thirty at a time."""
    sampler, tokens = Sampler(rows), []
    batch = np.repeat(logits(), 30, axis=0)
    for first in range(0, len(requests), 30):
        some = requests[first : first + 30]
        tokens += sampler.sample(batch, range(len(some)), some)
    assert all(isinstance(token, int) for token in tokens)
    return [token for token in tokens if isinstance(token, int)]


def exact_distribution(request: SampleRequest) -> F64:
    return naive_distribution(naive_logits(logits()[0], request), request.params)


def fits(tokens: Sequence[int], exact: F64) -> bool:
    """Whether the tokens look drawn from ``exact``: none that is impossible, and a chi-square below its limit.

    Tokens of falling probability are put together in classes of which each expects at least ``LEAST`` draws.
    """
    counts, order = np.bincount(tokens, minlength=VOCAB), np.argsort(-exact, kind="stable")
    ends = (exact[order] * len(tokens)).cumsum()
    last = max(0, int(len(tokens) / LEAST) - 1)
    classes = np.minimum(np.floor(np.append(0, ends[:-1]) / LEAST).astype(int), last)
    expected = np.bincount(classes, exact[order] * len(tokens))
    observed = np.bincount(classes, counts[order])[expected > 0]
    expected = expected[expected > 0]
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    possible = not counts[exact == 0].any()
    return possible and (len(expected) == 1 or chi_square < chi_square_limit(len(expected) - 1))


def chi_square_limit(degrees: int) -> float:
    """What a chi-square of so many degrees exceeds once in about 30,000 times (Wilson & Hilferty 1931)."""
    return float(degrees * (1 - 2 / (9 * degrees) + 4.0 * np.sqrt(2 / (9 * degrees))) ** 3)


@pytest.mark.parametrize("rows", ROWS, ids=["numpy", "kernels"])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_tokens_of_many_positions_follow_the_exact_distribution(
    rules: dict[str, Any], rows: Callable[[], RowOps]
) -> None:
    requests = requests_of(rules, ((7, position) for position in range(DRAWS)))
    assert fits(draws(rows(), requests), exact_distribution(requests[0]))


@pytest.mark.parametrize("rows", ROWS, ids=["numpy", "kernels"])
@pytest.mark.parametrize("rules", [RULES[0], RULES[5], RULES[-1]], ids=str)
def test_tokens_of_many_seeds_follow_the_exact_distribution(rules: dict[str, Any], rows: Callable[[], RowOps]) -> None:
    """One position of many requests, whose seeds are derived from one, as those of n answers are."""
    requests = requests_of(rules, ((derive_seed(11, index), 40) for index in range(DRAWS)))
    assert fits(draws(rows(), requests), exact_distribution(requests[0]))


@pytest.mark.parametrize(
    ("rules", "others"),
    [
        ({}, {"temperature": 1.1}),
        ({"temperature": 0.8}, {"temperature": 0.9}),
        ({"top_k": 3}, {"top_k": 4}),
        ({"top_k": 7}, {"top_k": 6}),
        ({"top_p": 0.6}, {"top_p": 0.7}),
        ({"min_p": 0.1}, {"min_p": 0.02}),
        ({}, {"repetition_penalty": 1.2}),
        ({}, {"frequency_penalty": 0.4}),
        ({}, {"presence_penalty": 0.6}),
        ({}, {"logit_bias": {3: 1.0}}),
        ({}, {"suppressed": (9,)}),
        ({"allowed": range(0, VOCAB, 3)}, {"allowed": range(0, VOCAB, 6)}),
        ({}, {"allowed": range(VOCAB - 1)}),
    ],
    ids=str,
)
def test_the_statistic_finds_a_distribution_that_is_a_little_wrong(
    rules: dict[str, Any], others: dict[str, Any]
) -> None:
    tokens = draws(NumpyRows(), requests_of(rules, ((7, position) for position in range(DRAWS))))
    (wrong,) = requests_of(others, [(7, 0)])
    assert not fits(tokens, exact_distribution(wrong))


def test_the_statistic_finds_draws_that_depend_on_each_other() -> None:
    """An eighth of the draws, eight times: what a count deviates by counts eightfold."""
    requests = requests_of({"temperature": 2.5}, ((7, position % (DRAWS // 8)) for position in range(DRAWS)))
    assert not fits(draws(NumpyRows(), requests), exact_distribution(requests[0]))


@pytest.mark.parametrize("rows", ROWS, ids=["numpy", "kernels"])
def test_a_seed_draws_the_same_in_any_batch(rows: Callable[[], RowOps]) -> None:
    """Every rule in one batch, in three orders, and each request alone."""
    requests = [requests_of(rules, [(derive_seed(3, i), 5 + i)])[0] for i, rules in enumerate(RULES)]
    sampler, batch = Sampler(rows()), np.repeat(logits(), len(RULES), axis=0)
    alone = [sampler.sample(logits(), [0], [request])[0] for request in requests]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(RULES)).tolist()
        together = sampler.sample(batch, range(len(RULES)), [requests[index] for index in order])
        assert together == [alone[index] for index in order]
