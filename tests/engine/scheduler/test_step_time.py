"""The step-time model: it fits a measured machine, and tolerates noise, outliers and changes."""

from __future__ import annotations

import random

import pytest

from tests.support.basis import BASIS
from twofold.core.model import visible
from twofold.engine.scheduler.step_time import MIN_STEPS, StepShape, StepTimeModel

DECODE = ((1, 5.0), (2, 5.1), (4, 6.3), (8, 8.4), (16, 15.0), (32, 25.5), (64, 50.0))
MIXED = ((8, 14.2), (16, 19.9), (32, 27.5), (64, 45.0))
PREFILL = ((16, 500, 16.0), (32, 500, 24.0), (64, 500, 41.0), (128, 500, 76.0), (512, 0, 234.0), (512, 1024, 439.0))


def decode(rows: int) -> StepShape:
    """That many sequences that generate, 200 tokens long."""
    return StepShape(rows, rows, 200 * rows, 200 * rows)


MEASURED = (
    *((decode(rows), ms / 1e3) for rows, ms in DECODE),
    *((decode(8).plus(500, rows), ms / 1e3) for rows, ms in MIXED),
    *((StepShape().plus(start, rows, 1), ms / 1e3) for rows, start, ms in PREFILL),
)
"""Steps of a model of 135 million weights on two cores: shape and median seconds."""


def taught(steps: int, seed: int = 0, *, slower: float = 1.0, noise: float = 0.08) -> StepTimeModel:
    model, rng = StepTimeModel(BASIS), random.Random(seed)
    teach(model, rng, steps, slower, noise)
    return model


def teach(model: StepTimeModel, rng: random.Random, steps: int, slower: float = 1.0, noise: float = 0.08) -> None:
    """Steps of all kinds; every 20th takes three times as long because of a neighbour."""
    for _ in range(steps):
        shape, seconds = rng.choice(MEASURED)
        seconds *= slower * rng.lognormvariate(0, noise)
        model.observe(shape, 3 * seconds if rng.random() < 0.05 else seconds)


def errors(model: StepTimeModel, slower: float = 1.0) -> list[float]:
    predictions = [(model.predict(shape), seconds * slower) for shape, seconds in MEASURED]
    return sorted(abs((predicted or 0.0) / seconds - 1) for predicted, seconds in predictions)


def test_shapes_count_what_rows_see() -> None:
    assert visible(0, 3) == 1 + 2 + 3
    assert visible(7, 2) == 8 + 9
    assert StepShape(1, 1, 5, 5).plus(7, 2, 1) == StepShape(3, 2, 22, 14)


def test_the_first_steps_are_not_predicted() -> None:
    model = StepTimeModel(BASIS)
    for _ in range(MIN_STEPS):
        assert model.predict(decode(8)) is None
        model.observe(decode(8), 0.0084)
    assert model.predict(decode(8)) == pytest.approx(0.0084, rel=0.05)
    assert model.error is None


@pytest.mark.parametrize("slower", [3.0, 10.0, 30.0])
def test_a_slow_first_step_does_not_set_the_scale(slower: float) -> None:
    """The first prompt of a process waits for its weights and its memory."""
    model = StepTimeModel(BASIS)
    model.observe(StepShape().plus(0, 243, 1), slower * 0.12)
    for start in range(243, 242 + MIN_STEPS):
        model.observe(StepShape().plus(start, 1, 1), 0.004)
    assert model.predict(StepShape().plus(260, 1, 1)) == pytest.approx(0.004, rel=0.05)
    assert model.predict(StepShape().plus(0, 243, 1)) == pytest.approx(0.12, rel=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_it_fits_the_measured_machine(seed: int) -> None:
    found = errors(taught(600, seed))
    assert sum(found) / len(found) < 0.08
    assert found[-1] < 0.2


def test_twenty_steps_are_enough_for_a_first_idea() -> None:
    assert sum(errors(taught(20))) / len(MEASURED) < 0.12


def test_long_decoding_does_not_wipe_out_what_was_learned_of_prompts() -> None:
    model, rng = taught(600), random.Random(1)
    for _ in range(3000):
        model.observe(decode(32), 0.0255 * rng.lognormvariate(0, 0.08))
    assert sum(errors(model)) / len(MEASURED) < 0.1


def test_predictions_follow_a_machine_that_became_slower() -> None:
    model = taught(300)
    teach(model, random.Random(1), 200, slower=2.0)
    assert sum(errors(model, slower=2.0)) / len(MEASURED) < 0.12


def test_one_outlier_changes_little() -> None:
    model = taught(300, noise=0.02)
    before = model.predict(decode(8))
    model.observe(decode(8), 0.0084 * 50)
    after = model.predict(decode(8))
    assert before is not None
    assert after == pytest.approx(before, rel=0.1)


def test_more_rows_never_take_less() -> None:
    model = taught(100, seed=3)
    times = [model.predict(decode(8).plus(300, rows)) or 0.0 for rows in range(1, 512)]
    assert times == sorted(times)
    assert all(weight >= 0 for weight in model.weights)


def test_the_mean_error_is_kept() -> None:
    model = taught(300)
    assert model.error is not None
    assert 0 < model.error < 0.15
    assert StepTimeModel(BASIS).error is None


@pytest.mark.parametrize(("shape", "seconds"), [(StepShape(), 0.01), (StepShape(1, 1, 1, 1), 0.0)])
def test_steps_without_rows_or_time_are_ignored(shape: StepShape, seconds: float) -> None:
    model = taught(50)
    before = model.weights
    model.observe(shape, seconds)
    assert model.weights == before
