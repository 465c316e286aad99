"""Constants are found again in steps that were made with them, and in steps that were measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.scheduler.test_step_time import DECODE, MIXED, PREFILL
from tests.support.basis import BASIS
from twofold.core.errors import ResourceError
from twofold.core.values import FP16, FP32, find_format
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.planner.calibrate.probes import ProbePoint, Spans
from twofold.planner.calibrate.run import (
    Calibration,
    CalibrationSample,
    CalibrationSubject,
    error_of,
    fit_constants,
    load,
    read_constants,
    samples,
    save,
    step_samples,
    write_constants,
)
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Cited, Machine
from twofold.planner.predict.constants import BARE, CPU, Constants
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.shapes.known import find_shape

MACHINE = Machine(
    "two cores",
    "cpu",
    memory=Cited(16 << 30, "test"),
    bandwidth=Cited(27.5e9, "test"),
    peaks={"fp32": Cited(352e9, "test"), "int8": Cited(1314e9, "test")},
)
STEPS = StepPredictor.of(
    find_shape("smollm2-135m").stored_as(find_format("q4_1"), embedding=find_format("q4_1")),
    MACHINE,
    Setting(kv=FP16, activations=FP32),
)
TRUE = replace(BARE, overlap=CPU.overlap).having(
    {"eta_m": 0.7, "eta_c": 0.45, "eta_k": 0.5, "t_step": 4e-4, "t_req": 5e-5}, "made up"
)


def kinds() -> list[Spans]:
    """Rows of steps of all sorts."""
    decodes = [((batch, SequenceRows(1, context)),) for batch in (1, 2, 4, 8, 16, 24) for context in (20, 300, 900)]
    prompts = [((1, SequenceRows(rows, start)),) for rows in (8, 16, 64, 128, 256, 512) for start in (0, 300)]
    return [*decodes, *prompts]


def made(by: Constants, noise: float = 0.0) -> list[ProbePoint]:
    rng = random.Random(0)
    found = []
    for number, spans in enumerate(kinds()):
        seconds = STEPS.demand(spans).seconds(by)
        found += [ProbePoint(number, spans, seconds * rng.lognormvariate(0, noise), 0.0) for _ in range(5)]
    return found


def test_constants_are_found_again() -> None:
    found = fit_constants(samples(made(TRUE), STEPS), "test")
    assert found.error is not None
    assert found.error < 0.03
    assert found.eta_c == pytest.approx(TRUE.eta_c, rel=0.1)


def test_busy_moments_do_not_count() -> None:
    """One step in five takes three times as long; medians do not see it."""
    points = [
        replace(point, seconds=3 * point.seconds) if number % 5 == 0 else point
        for number, point in enumerate(made(TRUE, noise=0.05))
    ]
    found = fit_constants(samples(points, STEPS), "test")
    assert error_of(samples(made(TRUE), STEPS), found) < 0.06


def test_steps_that_were_measured_on_two_cores() -> None:
    """The steps of SmolLM2-135M that the live model's tests have: within 10% where held out."""
    measured = [
        *((((rows, SequenceRows(1, 199)),), ms) for rows, ms in DECODE),
        *((((8, SequenceRows(1, 199)), (1, SequenceRows(rows, 500, 0))), ms) for rows, ms in MIXED),
        *((((1, SequenceRows(rows, start)),), ms) for rows, start, ms in PREFILL),
    ]
    found = [CalibrationSample(number, STEPS.demand(spans), ms / 1e3) for number, (spans, ms) in enumerate(measured)]
    constants = fit_constants(found, "test")
    assert constants.error is not None
    assert constants.error <= 0.10


def test_few_probes_are_refused() -> None:
    with pytest.raises(ResourceError, match="3 probes"):
        fit_constants(samples([point for point in made(TRUE) if point.probe < 3], STEPS), "test")


def test_the_live_model_starts_from_calibrated_steps() -> None:
    model = StepTimeModel(BASIS, step_samples(made(TRUE)))
    assert model.error is None
    for spans in kinds()[:6]:
        ((count, span),) = spans
        shape = StepShape()
        for _ in range(count):
            shape = shape.plus(span.cached, span.new, 1)
        assert model.predict(shape) == pytest.approx(STEPS.demand(spans).seconds(TRUE), rel=0.25)


def test_constants_are_kept_with_their_sources(tmp_path: Path) -> None:
    constants = replace(CPU, error=Cited(0.07, "held out"))
    assert read_constants(write_constants(constants)) == constants
    assert read_constants(write_constants(constants)).eta_m.source == CPU.eta_m.source
    subject = CalibrationSubject("a processor", "avx2", 2, "model-1-abc")
    kept = Calibration(subject, constants, 100, 1e9, {"fp32": 2e9}, 10, 5, 3.0, "2026-01-01T00:00:00+00:00")
    assert save(kept, tmp_path) is not None
    assert load(subject, tmp_path) == kept
    assert kept.machine(1 << 30).peak("fp32") == 2e9


def test_a_calibration_of_another_machine_is_not_loaded(tmp_path: Path) -> None:
    subject = CalibrationSubject("a processor", "avx2", 2, "model-1-abc")
    assert load(subject, tmp_path) is None
    kept = Calibration(subject, CPU, 100, 1e9, {"fp32": 2e9}, 10, 5, 3.0, "2026-01-01T00:00:00+00:00")
    path = save(kept, tmp_path)
    assert path is not None
    assert load(replace(subject, cpu="another"), tmp_path) is None
    path.write_text("{}")
    assert load(subject, tmp_path) is None
