"""From measured steps to constants.

Of equal steps of a probe the median counts, so that a busy moment does not. Whether this machine reads while it
multiplies is fitted too: both forms of the model are tried, and the one that errs less on probes that it was not fitted
on is taken. Its error there is the one that is told; the constants are then fitted to all points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from twofold.core.errors import ResourceError
from twofold.engine.scheduler.step_time import StepShape
from twofold.planner.calibrate.probes import ProbePoint
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import BARE, Constants
from twofold.planner.predict.demand import Demand
from twofold.planner.predict.fit import Values, mean_error, search
from twofold.planner.predict.steps import StepPredictor

START: Final = {"eta_m": 0.5, "eta_c": 0.4, "eta_k": 0.3, "t_step": 3e-4, "t_req": 1e-4}
Counts: TypeAlias = tuple[tuple[int, int], ...]
MIN_PROBES: Final = 4
"""Fewer cannot be halved with anything left to learn from."""


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """The median of a probe's equal steps: what it asked for, and the seconds it took, the engine's own included."""

    probe: int
    demand: Demand
    seconds: float


def samples(points: Iterable[ProbePoint], steps: StepPredictor) -> list[CalibrationSample]:
    """One for each kind of step of each probe."""
    return [
        CalibrationSample(point.probe, steps.demand(point.spans), point.whole_s)
        for point in medians(points, lambda point: point.whole_s)
    ]


def lessons(points: Iterable[ProbePoint]) -> list[tuple[StepShape, float]]:
    """The same for the engine's own model, which knows steps by their shape and times their rows alone."""
    return [(_shape(point), point.seconds) for point in medians(points, lambda point: point.seconds)]


def medians(points: Iterable[ProbePoint], seconds: Callable[[ProbePoint], float]) -> list[ProbePoint]:
    """The median of each probe's equal steps: those where as many sequences have as many new rows."""
    kinds: dict[tuple[int, Counts], list[ProbePoint]] = {}
    for point in points:
        kinds.setdefault((point.probe, _counts(point)), []).append(point)
    return [sorted(equal, key=seconds)[len(equal) // 2] for equal in kinds.values()]


def fit_constants(found: Sequence[CalibrationSample], source: str) -> Constants:
    """The constants that err least, with their error. ResourceError where too few probes were run."""
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
    """Mean error on the half that was not fitted on, both ways."""
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
    """How many sequences had how many rows, whatever their contexts."""
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
