"""Training plus inference: the published optimum, and what must hold of any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.core.errors import ParameterError
from twofold.planner.price.lifetime import (
    CHINCHILLA,
    Lifetime,
    best_lifetime,
    better_than,
    chinchilla,
    lifetime_document,
    lifetime_lines,
)


def test_a_13b_model_that_serves_two_trillion_tokens_should_be_a_7b_one() -> None:
    """Sardana et al. 2023: 7.0 B parameters, 1,248 B tokens, 17 % fewer FLOPs."""
    given_, best = better_than(13e9, 2e12)
    assert best.parameters / 1e9 == pytest.approx(7.0, abs=0.05)
    assert best.training_tokens / 1e9 == pytest.approx(1_248, abs=1)
    assert best.flops / given_.flops - 1 == pytest.approx(-0.174, abs=0.001)


def test_without_served_tokens_chinchilla_is_the_best() -> None:
    given_, best = better_than(13e9, 0)
    assert best.parameters == pytest.approx(given_.parameters, rel=1e-3)
    assert best.flops == pytest.approx(given_.flops, rel=1e-6)


@pytest.mark.parametrize(("parameters", "factor"), [(8.03e9, 93), (70.55e9, 11)])
def test_llama_3_is_trained_on_less_than_a_hundred_times_chinchillas_tokens(parameters: float, factor: float) -> None:
    """ "Chinchilla × 100": × 93 for 8B, × 11 for 70B, both on 15 T tokens."""
    assert 15e12 / (20 * parameters) == pytest.approx(factor, abs=0.5)


@given(st.floats(1e8, 1e12), st.floats(0, 1e14))
def test_the_best_reaches_the_loss_and_no_other_size_costs_less(parameters: float, served: float) -> None:
    given_, best = better_than(parameters, served)
    loss = CHINCHILLA.loss(parameters, given_.training_tokens)
    assert CHINCHILLA.loss(best.parameters, best.training_tokens) == pytest.approx(loss, rel=1e-9)
    assert best.flops <= given_.flops * (1 + 1e-9)
    for factor in (0.9, 1.1):
        size = best.parameters * factor
        assert Lifetime(size, CHINCHILLA.tokens_for(size, loss), served).flops >= best.flops


def test_more_served_tokens_make_smaller_models() -> None:
    sizes = [better_than(13e9, served)[1].parameters for served in (0, 1e11, 1e12, 1e13)]
    assert sizes == sorted(sizes, reverse=True)


def test_what_no_model_reaches_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"No model reaches a loss of 1\.6 under this scaling law") as caught:
        best_lifetime(1.6, 0)
    assert caught.value.hint == "Its floor is 1.69."
    for parameters, served in ((0, 0), (13e9, -1), (13e9, float("inf"))):
        with pytest.raises(ParameterError):
            chinchilla(parameters, served)


def test_the_lines_and_the_document() -> None:
    given_, best = better_than(13e9, 2e12)
    text = "\n".join(lifetime_lines(given_, best))
    assert "7.0 B parameters, 1,248 B tokens of training" in text
    assert "17.4% less" in text
    assert lifetime_document(given_, best)["saved_share"] == pytest.approx(0.174, abs=0.001)
