"""Calibration from end to end on tiny models: measuring, storing, and the start of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.cpu.backend import CpuBackend
from twofold.backends.cpu.machine import MachineProbe
from twofold.core.errors import ResourceError
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.engine.llm import LLM
from twofold.engine.scheduler.step_time import MIN_STEPS, StepShape
from twofold.engine.step_samples import read_step_samples, write_step_samples
from twofold.host.paths import CacheFolders
from twofold.planner.calibrate import run
from twofold.planner.calibrate.probes import PROBES, Probe, affordable
from twofold.planner.predict.request import Case
from twofold.planner.shapes.known import read_shape

TINY_PROBES = (Probe(1, 8, 4), Probe(2, 8, 4), Probe(4, 4, 4), Probe(1, 24, 3), Probe(3, 8, 3))


LIMITS = MachineLimits(
    "some processor", "any", 1, (ReadSpeed(32 << 20, 2e10),), 1e11, 5e10, "2026-01-01T00:00:00+00:00"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests: kernels are compiled once. Ceilings are not measured."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOFOLD_CACHE", str(folder))
        patch.setattr(run, "PROBES", TINY_PROBES)
        patch.setattr(MachineProbe, "best", lambda _self: LIMITS)
        yield folder


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return tiny_gguf(TinyOptions()).path


def test_a_calibration_is_stored_and_predicts(cache: Path, model: Path) -> None:
    found = run.calibrate(model, {"threads": 1}, force=True)
    assert found.probes == len(TINY_PROBES)
    assert found.constants.error is not None
    predictor = run.calibrated(model, {"threads": 1})
    assert predictor is not None
    assert predictor.constants == found.constants
    prediction = predictor.predict(Case(prompt=16, output=4))
    assert prediction.ttft >= prediction.ttft_floor > 0
    assert run.calibrated(model, {"threads": 7}) is None
    assert list((cache / "calibration").glob("*.json"))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("others", [0.0, 3.0])
def test_a_calibration_on_a_busy_machine_is_not_stored(
    model: Path, monkeypatch: pytest.MonkeyPatch, others: float
) -> None:
    """Predictions stay as they were. Others take that share of the processor time, or the error is large."""
    took = iter([0.0, others * 1e3])
    monkeypatch.setattr(run, "others_busy_s", lambda: next(took))
    monkeypatch.setattr(run, "held_out_error", lambda _: 0.02 if others else 0.4)
    monkeypatch.setattr(run, "save", lambda *_: pytest.fail("stored"))
    monkeypatch.setattr(run, "write_step_samples", lambda *_: pytest.fail("stored"))
    found = run.calibrate(model, {"threads": 1})
    assert not found.reliable
    assert ("while the machine was busy" in found.constants.error.source) == bool(others)  # type: ignore[union-attr]


def test_an_engine_predicts_its_first_step_after_calibration(cache: Path, model: Path) -> None:
    with LLM(model, threads=2) as before:
        assert before.engine.scheduler.step_time.predict(StepShape(1, 1, 8, 8)) is None
    run.calibrate(model, {"threads": 2}, force=True)
    with LLM(model, threads=2) as after:
        assert after.engine.scheduler.step_time.predict(StepShape(1, 1, 8, 8)) is not None
        assert after.engine.scheduler.step_time.error is None
    assert len(read_step_samples(model, CpuBackend(threads=2), cache)) >= MIN_STEPS


@pytest.mark.usefixtures("cache")
def test_every_step_of_a_probe_is_a_point(model: Path) -> None:
    CacheFolders.of().create()
    shape = read_shape(model)
    points = run.measure(model, shape, {"threads": 1}, 10.0, lambda: False)
    assert {point.probe for point in points} == set(range(len(TINY_PROBES)))
    first = [point for point in points if point.probe == 0]
    assert sum(span.new * count for point in first for count, span in point.spans) == 8 + 4 - 1
    assert all(point.seconds > 0 and point.host_s >= 0 for point in points)


@pytest.mark.usefixtures("cache")
def test_too_few_probes_are_an_error(model: Path) -> None:
    with pytest.raises(ResourceError, match="probes"):
        run.calibrate(model, {"threads": 1}, stop=lambda: True)
    with pytest.raises(ResourceError, match="probes"):
        run.calibrate(model, {"threads": 1}, seconds=0.0)


def test_probes_that_fit() -> None:
    assert list(affordable(PROBES, 1_100, 24)) == list(PROBES)
    assert all(probe.prompt + probe.output <= 200 for probe in affordable(PROBES, 200, 24))
    assert all(probe.batch <= 4 for probe in affordable(PROBES, 1_100, 4))


def test_step_samples_of_another_model_are_not_read(tmp_path: Path, model: Path) -> None:
    samples = [(StepShape(1, 1, 8, 8), 0.01), (StepShape(8, 1, 36, 8), 0.03)]
    backend = CpuBackend("portable", 2)
    write_step_samples(samples, model, backend, tmp_path)
    assert read_step_samples(model, backend, tmp_path) == tuple(samples)
    assert read_step_samples(model, CpuBackend(threads=2), tmp_path) == ()
    other = tmp_path / model.name
    other.write_bytes(model.read_bytes() + b"more")
    assert read_step_samples(other, backend, tmp_path) == ()
    (file,) = (tmp_path / "calibration").iterdir()
    file.write_text('{"version": "twofold.lessons/1", "cpu": 3, "steps": 1}')
    assert read_step_samples(model, backend, tmp_path) == ()
