"""Calibrates this machine for a model: measures its limits, runs probes, fits the constants, and stores them as JSON.

A calibration takes less than a minute: ``PROBES_S`` seconds of probes, and loading the model.

Of a probe's equal steps only the median counts, which ignores moments in which the machine is busy. The constants are
fitted to all points; their error is that of constants fitted to half of the probes, on the other half. How much of
reading and multiplying overlaps is not fitted: probes of one model tell it too poorly.

The fit is a direct search (Hooke and Jeeves 1961) on the logarithms of the constants: each is raised or lowered by a
factor while that helps, then by smaller factors. The error, the mean of |predicted − measured| / measured, has no
derivative everywhere.

The cache folder has one file for each model, instruction set and number of threads. A calibration is valid for the
processor and the model file with which it was made."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias

from twofold.backends.base import Backend
from twofold.core.errors import ResourceError
from twofold.core.model import ModelSpec
from twofold.core.values import Arithmetic
from twofold.engine.config import EngineOptions
from twofold.engine.llm import LLM
from twofold.engine.scheduler.step_time import StepShape
from twofold.engine.step_samples import write_step_samples
from twofold.formats.identity import model_key, model_parts
from twofold.host.machine import others_busy_s, read_cpu, read_memory
from twofold.host.paths import CacheFolders, write_whole
from twofold.planner.calibrate.probes import PROBES, ProbePoint, Prober, affordable
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.machines.machine import Cited, Machine, engine_setting, machine_of, measured_machine
from twofold.planner.predict.constants import BARE, CPU, OVERLAP, SHARES, TIMES, Constants
from twofold.planner.predict.request import Predictor
from twofold.planner.predict.steps import Demand, StepPredictor
from twofold.planner.shapes.known import read_shape

FIRST_FACTOR: Final = 1.4
LAST_FACTOR: Final = 1.002
MIN_GAIN: Final = 1e-7
MIN_VALUE: Final = 1e-9
"""Stands for zero seconds: the search multiplies values, so they must stay above zero."""

Values = dict[str, float]
FORM: Final = replace(BARE, overlap=CPU.overlap)
START: Final = {"eta_m": 0.5, "eta_c": 0.4, "eta_k": 0.3, "t_step": 3e-4, "t_req": 1e-4}
Counts: TypeAlias = tuple[tuple[int, int], ...]
LARGE_ERROR: Final = 0.15
BUSY_SHARE: Final = 0.1
"""With a larger error, or where other programs took more of the processor time, a calibration is not stored."""
MIN_PROBES: Final = 4
"""With fewer probes, half of them are too few for a fit."""
PROBES_S: Final = 40.0
CONTEXT: Final = 1_100
SEQUENCES: Final = 24
ENGINE: Final = engine_setting()
VERSION: Final = "twofold.calibration/2"
NO_OPTIONS: Final[Mapping[str, Any]] = {}


def search(error: Callable[[Values], float], start: Mapping[str, float]) -> Values:
    """The values near ``start`` with the minimum ``error``. Shares stay at most 1."""
    found = {name: max(value, MIN_VALUE) for name, value in start.items()}
    best, factor = error(found), FIRST_FACTOR
    while factor > LAST_FACTOR:
        before = best
        for name in start:
            for change in (factor, 1 / factor):
                tried = {**found, name: _bounded(name, found[name] * change)}
                now = error(tried)
                if now < best - MIN_GAIN:
                    found, best = tried, now
                    break
        if best >= before - MIN_GAIN:
            factor **= 0.5
    return found


def mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of |predicted − measured| / measured over (predicted, measured)."""
    return fmean(abs(predicted / measured - 1) for predicted, measured in pairs)


def _bounded(name: str, value: float) -> float:
    return min(value, 1.0) if name in SHARES else max(value, MIN_VALUE)


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """The median of a probe's equal steps: its demand, and its seconds including those of the engine around it."""

    probe: int
    demand: Demand
    seconds: float


def samples(points: Iterable[ProbePoint], steps: StepPredictor) -> list[CalibrationSample]:
    """One sample for each kind of step of each probe."""
    return [
        CalibrationSample(point.probe, steps.demand(point.spans), point.whole_s)
        for point in medians(points, lambda point: point.whole_s)
    ]


def step_samples(points: Iterable[ProbePoint]) -> list[tuple[StepShape, float]]:
    """Samples for the engine's own step-time model, which predicts the seconds of a step from its shape."""
    return [(_shape(point), point.seconds) for point in medians(points, lambda point: point.seconds)]


def medians(points: Iterable[ProbePoint], seconds: Callable[[ProbePoint], float]) -> list[ProbePoint]:
    """The median of each probe's equal steps, which have the same numbers of sequences by new rows."""
    kinds: dict[tuple[int, Counts], list[ProbePoint]] = {}
    for point in points:
        kinds.setdefault((point.probe, _counts(point)), []).append(point)
    return [sorted(equal, key=seconds)[len(equal) // 2] for equal in kinds.values()]


def fit_constants(found: Sequence[CalibrationSample], source: str) -> Constants:
    """Constants with their held-out error. Raises ResourceError if too few probes were run."""
    probes = sorted({sample.probe for sample in found})
    if len(probes) < MIN_PROBES:
        raise ResourceError(
            f"Only {len(probes)} probes were run; at least {MIN_PROBES} are needed.",
            hint="Allow more time, or calibrate with a smaller model.",
        )
    halves = [[sample for sample in found if probes.index(sample.probe) % 2 == side] for side in (0, 1)]
    error = Cited(held_out_error(halves), f"{source}; held-out probes")
    return replace(FORM.having(_fit(found), source), error=error)


def held_out_error(halves: Sequence[Sequence[CalibrationSample]]) -> float:
    """Mean error on each half of the samples, with constants fitted to the other half."""
    first, second = halves
    pairs = ((first, second), (second, first))
    return fmean(error_of(held_out, FORM.having(_fit(fitted), "a half")) for fitted, held_out in pairs)


def error_of(found: Iterable[CalibrationSample], by: Constants) -> float:
    """Mean of |predicted − measured| / measured."""
    return mean_error((sample.demand.seconds(by), sample.seconds) for sample in found)


def _fit(found: Sequence[CalibrationSample]) -> Values:
    return search(lambda values: error_of(found, FORM.having(values, "tried")), START)


def _counts(point: ProbePoint) -> Counts:
    """Numbers of sequences by new rows, for all contexts."""
    counts = Counter[int]()
    for count, span in point.spans:
        counts[span.new] += count
    return tuple(sorted(counts.items()))


def _shape(point: ProbePoint) -> StepShape:
    shape = StepShape()
    for count, span in point.spans:
        for _ in range(count):
            shape = shape.plus(span.cached, span.new, span.logits)
    return shape


def calibrate(
    path: Path,
    options: Mapping[str, Any] = NO_OPTIONS,
    *,
    seconds: float = PROBES_S,
    stop: Callable[[], bool] = lambda: False,
    force: bool = False,
) -> Calibration:
    """Measures the model in a GGUF file on this machine, and stores the calibration in the cache folder.

    One that is not ``reliable`` is stored only with ``force``, because it would make predictions worse. ``options`` are
    those of the backend, ``seconds`` the time for the probes. Raises what loading a model raises, and ResourceError if
    too few probes were run.
    """
    began = time.perf_counter()
    folders = CacheFolders.of().create()
    backend = EngineOptions(backend_options=options).open_backend()
    subject = subject_of(path, backend)
    shape = read_shape(path)
    read = streamed_bytes(shape, ENGINE)
    probe = backend.probe(read)
    probe.best()  # before and after the probes: other programs only slow measurements down, and the best one counts
    others, measuring = others_busy_s(), time.perf_counter()
    points = measure(path, shape, options, seconds, stop)
    measured_s = (time.perf_counter() - measuring) * read_cpu().usable
    others = max(0.0, others_busy_s() - others) / measured_s
    machine = machine_of(shape, probe.best())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = samples(points, StepPredictor.of(shape, machine, ENGINE))
    busy = ", calibrated while the machine was busy" if others > BUSY_SHARE else ""
    constants = fit_constants(
        found, f"fitted {now} on {len(points)} steps of {path.name} with {subject.threads} threads{busy}"
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
        others,
    )
    if force or calibration.reliable:
        save(calibration, folders.root)
        write_step_samples(step_samples(points), path, backend, folders.root)
    return calibration


def measure(
    path: Path, shape: ModelSpec, options: Mapping[str, Any], seconds: float, stop: Callable[[], bool]
) -> list[ProbePoint]:
    """Steps of all probes that fit the model's context and run within ``seconds``."""
    context = min(CONTEXT, shape.context_length)
    with LLM(
        path,
        max_model_len=context,
        max_num_seqs=SEQUENCES,
        swap_space_bytes=0,
        token_budget="fixed",
        backend_options=options,
    ) as llm:
        prober = Prober(llm.client, llm.loaded.spec.vocab_size, stop)
        prober.run(list(affordable(PROBES, context, SEQUENCES)), seconds)
        return prober.points


def subject_of(path: Path, backend: Backend) -> CalibrationSubject:
    """The subject of a calibration of this model on this machine."""
    isa, threads = backend.variant
    return CalibrationSubject(backend.device, isa, threads, model_key(model_parts(path)))


def calibrated(path: Path, options: Mapping[str, Any] = NO_OPTIONS) -> Predictor | None:
    """Returns the calibrated predictor of a model on this machine, with these options of the backend; None before the
    first calibration."""
    backend = EngineOptions(backend_options=options).open_backend()
    calibration = load(subject_of(path, backend), CacheFolders.of().root)
    if calibration is None:
        return None
    return Predictor(read_shape(path), calibration.machine(read_memory().usable), calibration.constants, ENGINE)


@dataclass(frozen=True, slots=True)
class CalibrationSubject:
    """What a calibration is valid for. ``model`` identifies a file by its name, size and first bytes."""

    cpu: str
    isa: str
    threads: int
    model: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of one model on this machine.

    working_set      bytes that a step reads; ``bandwidth`` was measured by reading as many
    bandwidth, peaks limits of the machine in bytes and FLOPs a second, to which the shares apply
    steps, probes    numbers of steps and probes measured
    took_s           seconds that the calibration took
    measured         time of the calibration, in ISO format
    others           share of the processor time of the probes that other programs took
    """

    subject: CalibrationSubject
    constants: Constants
    working_set: int
    bandwidth: float
    peaks: Mapping[Arithmetic, float]
    steps: int
    probes: int
    took_s: float
    measured: str
    others: float = 0.0

    @property
    def error(self) -> float:
        """Mean error of step times on held-out probes."""
        return 0.0 if self.constants.error is None else float(self.constants.error)

    @property
    def reliable(self) -> bool:
        """Whether the machine was idle and its steps are predicted well."""
        return self.error <= LARGE_ERROR and self.others <= BUSY_SHARE

    def machine(self, memory_bytes: int) -> Machine:
        """The measured machine, with ``memory_bytes`` bytes of memory."""
        source = f"measured {self.measured} with {self.subject.threads} threads ({self.subject.isa})"
        return measured_machine(memory_bytes, self.bandwidth, self.peaks, self.subject.cpu, source)


def save(calibration: Calibration, cache: Path) -> Path | None:
    """Writes a calibration, whole or not at all, and returns its file; None if the folder cannot be written."""
    path = _path(calibration.subject, cache)
    document = {"version": VERSION, **asdict(calibration), "constants": write_constants(calibration.constants)}
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(document, indent=1).encode())
        return path
    return None


def load(subject: CalibrationSubject, cache: Path) -> Calibration | None:
    """Returns the calibration of a subject, or None if the file is missing or unreadable."""
    try:
        document = json.loads(_path(subject, cache).read_text("utf-8"))
        return _read(document, subject)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_constants(constants: Constants) -> dict[str, Any]:
    """Constants as plain data for JSON: each with its value and source."""
    values = {name: value.document() for name, value in constants.values().items()}
    error = None if constants.error is None else constants.error.document()
    return {**values, "error": error}


def read_constants(document: Mapping[str, Any]) -> Constants:
    """Reads the result of ``write_constants``. Raises KeyError, TypeError or ValueError for other documents."""
    error = document["error"]
    return Constants(
        **{name: _cited(document[name]) for name in (*SHARES, OVERLAP, *TIMES)},
        error=None if error is None else _cited(error),
    )


def _cited(entry: Mapping[str, Any]) -> Cited:
    return Cited(float(entry["value"]), str(entry["source"]))


def _read(document: dict[str, Any], subject: CalibrationSubject) -> Calibration | None:
    if document.pop("version") != VERSION or CalibrationSubject(**document.pop("subject")) != subject:
        return None
    return Calibration(subject=subject, constants=read_constants(document.pop("constants")), **document)


def _path(subject: CalibrationSubject, cache: Path) -> Path:
    return cache / "calibration" / f"{subject.isa}-{subject.threads}-{subject.model}.json"
