"""Calibrates this machine for a model: measures the ceilings, runs the probes, fits the constants, keeps them.

Less than a minute: the probes get ``PROBES_S`` seconds, beside loading the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from twofold.backends.cpu.backend import CpuBackend
from twofold.core.model import ModelSpec
from twofold.engine.llm import LLM
from twofold.engine.step_samples import model_key, write_step_samples
from twofold.host.memory import read_memory
from twofold.host.paths import CacheFolders
from twofold.planner.calibrate.fit import fit_constants, samples, step_samples
from twofold.planner.calibrate.probes import PROBES, ProbePoint, Prober, affordable
from twofold.planner.calibrate.store import Calibration, CalibrationSubject, load, save
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.machines.machine import engine_setting, machine_of
from twofold.planner.predict.request import Predictor
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.shapes.known import read_shape

PROBES_S: Final = 40.0
CONTEXT: Final = 1_100
SEQUENCES: Final = 24
ENGINE: Final = engine_setting()


def calibrate(
    path: Path,
    *,
    isa: str | None = None,
    threads: int | None = None,
    seconds: float = PROBES_S,
    stop: Callable[[], bool] = lambda: False,
) -> Calibration:
    """Measures the model in a GGUF file on this machine and keeps what was found in the cache folder.

    Raises what loading a model raises, and ResourceError where time was too short for enough probes.
    """
    began = time.perf_counter()
    folders = CacheFolders.of().create()
    subject = subject_of(path, isa, threads)
    shape = read_shape(path)
    read = streamed_bytes(shape, ENGINE)
    backend = CpuBackend(isa, subject.threads)
    probe = backend.probe(read)
    probe.best()  # once before and once after: other programs can only slow a probe down, and the best counts
    points = measure(path, shape, isa, subject.threads, seconds, stop)
    machine = machine_of(shape, probe.best())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = samples(points, StepPredictor.of(shape, machine, ENGINE))
    constants = fit_constants(
        found, f"fitted {now} on {len(points)} steps of {path.name} with {subject.threads} threads"
    )
    calibration = Calibration(
        subject,
        constants,
        read,
        float(machine.bandwidth),
        {name: float(value) for name, value in machine.peaks.items()},
        len(points),
        len({point.probe for point in points}),
        time.perf_counter() - began,
        now,
    )
    save(calibration, folders.root)
    write_step_samples(step_samples(points), path, backend, folders.root)
    return calibration


def measure(
    path: Path, shape: ModelSpec, isa: str | None, threads: int, seconds: float, stop: Callable[[], bool]
) -> list[ProbePoint]:
    """Steps of all probes that the model has room for and that fit into the time."""
    context = min(CONTEXT, shape.context_length)
    with LLM(
        path,
        max_model_len=context,
        max_num_seqs=SEQUENCES,
        swap_space_bytes=0,
        token_budget="fixed",
        isa=isa,
        threads=threads,
    ) as llm:
        prober = Prober(llm.client, llm.loaded.spec.vocab_size, stop)
        prober.run(list(affordable(PROBES, context, SEQUENCES)), seconds)
        return prober.points


def subject_of(path: Path, isa: str | None = None, threads: int | None = None) -> CalibrationSubject:
    """What a calibration of this model on this machine is filed under."""
    backend = CpuBackend(isa, threads)
    return CalibrationSubject(backend.device, backend.table.name, backend.workers, model_key(path))


def calibrated(path: Path, isa: str | None = None, threads: int | None = None) -> Predictor | None:
    """Predicts for a model on this machine by what was calibrated; None where nothing was."""
    calibration = load(subject_of(path, isa, threads), CacheFolders.of().root)
    if calibration is None:
        return None
    return Predictor(read_shape(path), calibration.machine(read_memory().usable), calibration.constants, ENGINE)
