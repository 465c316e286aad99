"""What the time of a step is linear in: features, distinct experts, and what is no basis."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.conftest import tiny_spec
from tests.support.basis import BASIS, PRIOR
from twofold.core.model import ExpertFFN, GatedFFN, LayerSpec, ModelSpec
from twofold.core.step_basis import StepBasis, experts_of


def with_experts(*counts: int) -> ModelSpec:
    """A layer of so many experts each, two of which compute a row; 0: a plain layer."""
    (layer, *_), size = tiny_spec().layers, 8
    layers = tuple(LayerSpec(layer.attention, ExpertFFN(n, 2, size) if n else GatedFFN(size)) for n in counts)
    return ModelSpec("mock", 8, 300, 64, layers)


def test_a_dense_model_has_six_features() -> None:
    assert experts_of(tiny_spec()) == ()
    assert BASIS.weights == PRIOR
    assert BASIS.features(40, 3, 100, 50) == (1.0, 40.0, 32.0, 3.0, 100.0, 50.0)


def test_layers_with_experts_add_one_feature() -> None:
    assert experts_of(with_experts(0, 8, 8, 4)) == ((2, 8, 2), (1, 4, 2))
    basis = StepBasis(32, PRIOR, experts_of(with_experts(0, 8, 8, 4)))
    assert len(basis.weights) == len(basis.features(1, 1, 1, 1)) == 7
    assert basis.features(1, 1, 1, 1)[6] == pytest.approx(2 * 2 + 2), "a row reads its own experts"
    assert basis.features(1_000, 1, 1, 1)[6] == pytest.approx(2 * 8 + 4), "many rows read all"


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 16))
def test_distinct_experts_are_those_that_rows_choose_by_chance(rows: int, count: int, active: int) -> None:
    active, chance, trials = min(active, count), Random(rows), 300
    seen = (len({e for _ in range(rows) for e in chance.sample(range(count), active)}) for _ in range(trials))
    assert StepBasis(experts=((3, count, active),)).distinct(rows) == pytest.approx(3 * sum(seen) / trials, rel=0.15)


@pytest.mark.parametrize(
    "fields",
    [
        {"knee": 0},
        {"prior": (0.0, *PRIOR[1:])},
        {"prior": (float("nan"), *PRIOR[1:])},
        {"prior": (float("inf"), *PRIOR[1:])},
        {"experts": ((1, 4, 5),)},
        {"experts": ((0, 4, 2),)},
    ],
)
def test_what_is_no_basis_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no basis"):
        StepBasis(**fields)  # type: ignore[arg-type]
