"""Random requests by index, in any order, and their shared prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.load.base import Shared
from twofold.bench.load.lengths import BLOCK, Fixed, RandomStream, RandomValues, Uniform
from twofold.bench.load.synthetic import RandomRequests, SharedPrefix
from twofold.core.errors import ParameterError


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 20 * BLOCK), max_size=40), st.integers(0, 2**40))
def test_requests_do_not_depend_on_the_order_of_access(order: list[int], seed: int) -> None:
    def requests() -> RandomRequests:
        return RandomRequests(
            Uniform(1, 9999), Uniform(1, 9999), seed=seed, shared=SharedPrefix(0.5, groups=9, zipf=1.0)
        )

    one = requests()
    assert [one.ask(index, 0.0) for index in order] == [requests().ask(index, 0.0) for index in order]


def test_values_come_in_the_order_of_their_indices() -> None:
    draws = RandomValues[int](5, RandomStream.INPUT, lambda rng, size: rng.integers(1000, size=size))
    ahead = [value for _, value in zip(range(3 * BLOCK), draws, strict=False)]
    assert ahead == [draws[index] for index in range(3 * BLOCK)]
    assert ahead[:BLOCK] != ahead[BLOCK : 2 * BLOCK]


def test_streams_of_one_seed_are_independent() -> None:
    plain = RandomRequests(Uniform(1, 999), Uniform(1, 999), seed=4)
    other = RandomRequests(Uniform(1, 999), Fixed(5), seed=4, shared=SharedPrefix(0.3))
    assert [plain.ask(i, 0.0).input_tokens for i in range(50)] == [other.ask(i, 0.0).input_tokens for i in range(50)]
    asks = [plain.ask(i, 0.0) for i in range(50)]
    assert [ask.input_tokens for ask in asks] != [ask.output_tokens for ask in asks]


def test_a_request_has_the_given_properties() -> None:
    requests = RandomRequests(Fixed(100), Fixed(7), shared=SharedPrefix(0.25))
    ask = requests.ask(3, 1.5)
    assert (ask.index, ask.due_s, ask.input_tokens, ask.output_tokens) == (3, 1.5, 100, 7)
    assert ask.shared == (Shared(0, 25),)
    assert requests.description == {
        "input_tokens": {"kind": "fixed", "length": 100},
        "output_tokens": {"kind": "fixed", "length": 7},
        "shared": {"fraction": 0.25, "groups": 1, "zipf": 0.0},
        "seed": 0,
    }


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**64])
def test_impossible_seeds(seed: int) -> None:
    with pytest.raises(ParameterError, match="seed must be a whole number"):
        RandomRequests(Fixed(1), Fixed(1), seed=seed)


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_a_fraction_is_never_more_than_the_prompt(fraction: float, tokens: int) -> None:
    shared = sum(piece.tokens for piece in SharedPrefix(fraction).pieces(0, tokens))
    assert shared == pytest.approx(fraction * tokens, abs=0.5)


@pytest.mark.parametrize("zipf", [0.0, 0.7, 1.0, 2.0])
def test_groups_are_as_popular_as_zipf_says(zipf: float) -> None:
    drawn = SharedPrefix(0.5, groups=5, zipf=zipf).sample(np.random.default_rng(2), 100_000)
    weights = np.array([1 / k**zipf for k in range(1, 6)])
    assert np.bincount(drawn, minlength=5) / len(drawn) == pytest.approx(weights / weights.sum(), abs=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fraction": 1.5},
        {"fraction": float("nan")},
        {"fraction": -0.1},
        {"fraction": 0.5, "groups": 0},
        {"fraction": 0.5, "zipf": -1.0},
    ],
)
def test_impossible_prefixes(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        SharedPrefix(**wrong)  # type: ignore[arg-type]
