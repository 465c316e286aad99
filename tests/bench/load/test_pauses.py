"""Distributions of pauses between turns, and the texts that describe them."""

from __future__ import annotations

import numpy as np
import pytest

from twofold.bench.load.lengths import Pauses, parse_pauses
from twofold.core.errors import ParameterError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", Pauses("fixed", 2)),
        ("0", Pauses("fixed", 0)),
        ("0.5-3", Pauses("uniform", 0.5, 3)),
        ("exp:2", Pauses("exp", 2)),
        ("lognormal:2,0.5", Pauses("lognormal", 2, 0.5)),
    ],
)
def test_texts(text: str, expected: Pauses) -> None:
    assert parse_pauses(text, "think") == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "3-1", "nan", "inf", "exp:", "exp:-1", "lognormal:2", "gauss:2,1"])
def test_invalid_texts_of_pauses(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_pauses(text, "think")
    assert caught.value.param == "think"


def test_the_closest_kind_is_suggested() -> None:
    with pytest.raises(ParameterError) as caught:
        parse_pauses("expo:2", "think")
    assert caught.value.hint == "Did you mean exp:2?"


@pytest.mark.parametrize(
    ("pauses", "mean", "deviation"),
    [
        (Pauses("fixed", 2), 2, 0),
        (Pauses("uniform", 1, 3), 2, 2 / np.sqrt(12)),
        (Pauses("exp", 2), 2, 2),
        (Pauses("lognormal", 2, 0.5), 2, 1),
        (Pauses("lognormal", 0, 0.5), 0, 0),
    ],
)
def test_pauses_have_their_mean_and_deviation(pauses: Pauses, mean: float, deviation: float) -> None:
    drawn = pauses.sample(np.random.default_rng(3), 100_000)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(deviation, rel=0.03)


def test_descriptions() -> None:
    assert Pauses("uniform", 1, 3).describe() == {"kind": "uniform", "least": 1, "most": 3}
    assert Pauses("exp", 2).describe() == {"kind": "exp", "mean": 2}
