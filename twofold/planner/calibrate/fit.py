"""Fits constants to measured steps.

Of equal steps of a probe the median counts, so that a busy moment does not. Both forms of the model are fitted, with
and without reading while multiplying; the one with the smaller error on probes that it was not fitted to is used, with
that error, and then fitted to all points.

The fit is a direct search (Hooke and Jeeves 1961) on the logarithms of the constants: each is raised or lowered by a
factor while that helps, then by smaller factors. The error that it minimises has no derivative: the mean of
|predicted − measured| / measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, TypeAlias

from twofold.core.errors import ResourceError
from twofold.engine.scheduler.step_time import StepShape
from twofold.planner.calibrate.probes import ProbePoint
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import BARE, SHARES, Constants
from twofold.planner.predict.steps import Demand, StepPredictor

FIRST_FACTOR: Final = 1.4
LAST_FACTOR: Final = 1.002
MIN_GAIN: Final = 1e-7
LEAST: Final = 1e-9
"""Seconds that stand for zero: the search multiplies, and cannot leave zero."""

Values = dict[str, float]


def search(error: Callable[[Values], float], start: Mapping[str, float]) -> tuple[Values, float]:
    """The values near ``start`` with the least ``error``, and that error. Shares stay at most 1."""
    found = {name: max(value, LEAST) for name, value in start.items()}
    least, factor = error(found), FIRST_FACTOR
    while factor > LAST_FACTOR:
        before = least
        for name in start:
            for turn in (factor, 1 / factor):
                tried = {**found, name: _bounded(name, found[name] * turn)}
                now = error(tried)
                if now < least - MIN_GAIN:
                    found, least = tried, now
                    break
        if least >= before - MIN_GAIN:
            factor **= 0.5
    return found, least


def mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of |predicted − measured| / measured over (predicted, measured)."""
    return fmean(abs(predicted / measured - 1) for predicted, measured in pairs)


def _bounded(name: str, value: float) -> float:
    return min(value, 1.0) if name in SHARES else max(value, LEAST)


START: Final = {"eta_m": 0.5, "eta_c": 0.4, "eta_k": 0.3, "t_step": 3e-4, "t_req": 1e-4}
Counts: TypeAlias = tuple[tuple[int, int], ...]
MIN_PROBES: Final = 4
"""With fewer, half of them would not suffice to fit."""


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """The median of a probe's equal steps: its demand, and its seconds with those of the engine around it."""

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
    """Samples for the engine's own step-time model, which predicts seconds of rows by the shape of a step."""
    return [(_shape(point), point.seconds) for point in medians(points, lambda point: point.seconds)]


def medians(points: Iterable[ProbePoint], seconds: Callable[[ProbePoint], float]) -> list[ProbePoint]:
    """The median of each probe's equal steps: those with the same numbers of sequences by new rows."""
    kinds: dict[tuple[int, Counts], list[ProbePoint]] = {}
    for point in points:
        kinds.setdefault((point.probe, _counts(point)), []).append(point)
    return [sorted(equal, key=seconds)[len(equal) // 2] for equal in kinds.values()]


def fit_constants(found: Sequence[CalibrationSample], source: str) -> Constants:
    """The constants with the least error, and that error. Raises ResourceError if too few probes were run."""
    probes = sorted({sample.probe for sample in found})
    if len(probes) < MIN_PROBES:
        raise ResourceError(
            f"Only {len(probes)} probes were run; at least {MIN_PROBES} are needed.",
            hint="Give it more time, or a smaller model.",
        )
    halves = [[sample for sample in found if probes.index(sample.probe) % 2 == side] for side in (0, 1)]
    error, form = min(
        ((held_out_error(halves, form), form) for form in (BARE, replace(BARE, overlap=False))),
        key=lambda each: each[0],
    )
    values, _ = _fit(found, form)
    return replace(form.having(values, source), error=Cited(error, f"{source}; probes it was not fitted on"))


def held_out_error(halves: Sequence[Sequence[CalibrationSample]], form: Constants) -> float:
    """Mean error on the half that was not fitted, both ways."""
    first, second = halves
    errors = []
    for fitted, held_out in ((first, second), (second, first)):
        values, _ = _fit(fitted, form)
        errors.append(error_of(held_out, form.having(values, "a half")))
    return sum(errors) / len(errors)


def error_of(found: Iterable[CalibrationSample], by: Constants) -> float:
    """Mean of |predicted − measured| / measured."""
    return mean_error((sample.demand.seconds(by), sample.seconds) for sample in found)


def _fit(found: Sequence[CalibrationSample], form: Constants) -> tuple[Values, float]:
    return search(lambda values: error_of(found, form.having(values, "tried")), START)


def _counts(point: ProbePoint) -> Counts:
    """Numbers of sequences by new rows, whatever their contexts."""
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
