"""Distributions of lengths, and the texts that describe them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.load.lengths import Fixed, Lengths, Listed, LogNormal, Normal, Uniform, parse_lengths
from twofold.core.errors import ParameterError

lengths = st.one_of(
    st.builds(Fixed, st.integers(1, 10_000_000)),
    st.tuples(st.integers(1, 9000), st.integers(0, 9000)).map(lambda pair: Uniform(pair[0], sum(pair))),
    st.builds(Normal, st.floats(0.1, 1e6), st.floats(0, 1e6), st.integers(1, 10_000_000)),
    st.builds(LogNormal, st.floats(0.1, 1e6), st.floats(0, 50), st.integers(1, 10_000_000)),
    st.builds(Listed, st.lists(st.integers(1, 9000), min_size=1, max_size=9).map(tuple)),
)


def drawn(distribution: Lengths, count: int = 50_000) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return distribution.sample(np.random.default_rng(7), count).reshape(count)


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_lengths_are_whole_numbers_from_1_to_the_maximum(distribution: Lengths) -> None:
    found = drawn(distribution, 500)
    assert found.dtype == np.int64
    assert found.min() >= 1
    assert found.max() <= distribution.most


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", Fixed(512)),
        (" 512 ", Fixed(512)),
        ("256-1024", Uniform(256, 1024)),
        ("uniform:512,0.5", Uniform(256, 768)),
        ("uniform:100,0.125", Uniform(88, 112)),
        ("uniform:1,1", Uniform(1, 2)),
        ("normal:512,64", Normal(512, 64)),
        ("normal:512,64,600", Normal(512, 64, 600)),
        ("lognormal:512,0.8", LogNormal(512, 0.8)),
        ("lognormal:512,0.8,4096", LogNormal(512, 0.8, 4096)),
        ("list:128,512", Listed((128, 512))),
    ],
)
def test_texts(text: str, expected: Lengths) -> None:
    assert parse_lengths(text, "input-tokens") == expected


WRONG = (
    " x -5 0 5- 9-3 1.5 inf normal: normal:5 normal:1,2,3,4 normal:nan,1 list: list:1,0 uniform:5 uniform:5,2"
    " lognormal:5,-1 lognormal:0,1 lognormal:5,1,0 beta:2,3 99999999999999999999 normal:1,1e999"
)


@pytest.mark.parametrize("text", WRONG.split(" "))
def test_invalid_texts_of_lengths(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_lengths(text, "input-tokens")
    assert caught.value.param == "input-tokens"
    assert "input-tokens" in str(caught.value)


def test_the_closest_kind_is_suggested() -> None:
    with pytest.raises(ParameterError) as caught:
        parse_lengths("lognorm:512,0.8", "input-tokens")
    assert caught.value.hint == "Did you mean lognormal:512,0.8?"


def test_uniform_lengths_include_both_ends() -> None:
    found = drawn(Uniform(3, 6))
    assert np.bincount(found)[3:] / len(found) == pytest.approx(0.25, rel=0.05)


def test_a_normal_distribution_has_its_mean_and_deviation() -> None:
    found = drawn(Normal(512, 64))
    assert found.mean() == pytest.approx(512, rel=0.01)
    assert found.std() == pytest.approx(64, rel=0.02)


def test_a_log_normal_distribution_has_its_own_mean_and_variation() -> None:
    found = drawn(LogNormal(512, 0.8), 200_000)
    assert found.mean() == pytest.approx(512, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(0.8, rel=0.05)


def test_listed_lengths_are_as_likely_as_each_other() -> None:
    values, counts = np.unique(drawn(Listed((5, 9, 9, 700))), return_counts=True)
    assert values.tolist() == [5, 9, 700]
    assert counts / counts.sum() == pytest.approx([0.25, 0.5, 0.25], rel=0.05)


@settings(max_examples=30, deadline=None)
@given(lengths)
def test_a_description_defines_the_distribution(distribution: Lengths) -> None:
    said = dict(distribution.describe())
    kinds = {"fixed": Fixed, "uniform": Uniform, "normal": Normal, "lognormal": LogNormal, "list": Listed}
    made = kinds[said.pop("kind")](**{name: tuple(v) if name == "values" else v for name, v in said.items()})
    assert made == distribution
