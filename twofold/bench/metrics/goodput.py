"""Objectives of requests, and goodput: the work that met them.

Three definitions are in use: (i) requests a second that meet every objective, reported with their share; (ii) the
highest rate at which a given share of requests meets them (``bench.search``); (iii) MLPerf's: whether P99 of TTFT and
TPOT is within the limits of a scenario. Failures miss every objective.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

from twofold.bench.load.base import FAILURES
from twofold.bench.metrics.distribution import Interval, MeasureDistribution, wilson
from twofold.bench.metrics.requests import RequestFigures
from twofold.core.errors import ParameterError, describe_name, did_you_mean

_IN_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "µs": 1_000_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs)")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service level objectives: maximum seconds of each measure of a request; None is no limit.

    ttft  from its due time to its first output
    tpot  per token after the first, on average
    itl   longest gap between two chunks
    e2e   from its due time to its last output
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Parses ``ttft=500ms,tpot=50ms``. Raises ParameterError."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, found, value = (piece.strip() for piece in part.partition("="))
            if not found:
                hint = "Write for example ttft=500ms,tpot=50ms."
                raise ParameterError(f"{describe_name(part)} is not an objective.", param="slo", hint=hint)
            known = [field.name for field in fields(Objectives)]
            if name not in known:
                message = f"There is no measure {describe_name(name)}."
                raise ParameterError(message, param="slo", hint=did_you_mean(name, known))
            if name in limits:
                raise ParameterError(f"{name} has two limits.", param="slo", hint="Give each measure once.")
            limits[name] = duration(value, "slo")
        return cls(**limits)

    def limits(self) -> Iterator[tuple[str, float]]:
        """The measures with a limit, and their limits in seconds."""
        for field in fields(self):
            limit: float | None = getattr(self, field.name)
            if limit is not None:
                yield field.name, limit

    def __str__(self) -> str:
        texts = ((name, f"{s:g} s" if s >= 1 else f"{s * 1e3:g} ms") for name, s in self.limits())
        return ", ".join(f"{name.upper()} ≤ {text}" for name, text in texts)


def duration(text: str, param: str) -> float:
    """Seconds above 0 from a text such as ``500ms``. Raises ParameterError, also without a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            f"{describe_name(text)} is not a time.", param=param, hint="Write a number with s, ms or us: 0.5s, 500ms."
        )
    seconds = float(match[1]) / _IN_A_SECOND[match[2]]
    if not seconds:
        raise ParameterError(f"{param} has a limit of 0 seconds, which no request meets.", param=param)
    return seconds


@dataclass(frozen=True, slots=True)
class Misses:
    """Numbers of requests that missed objectives: failed or unfinished, empty, and by missed measures (one or more)."""

    failed: int = 0
    empty: int = 0
    ttft: int = 0
    tpot: int = 0
    itl: int = 0
    e2e: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredGoodput:
    """Goodput against objectives.

    judged       requests with a known result: all but requests open when the run was stopped, unless already late
    interval     of ``attainment``, by Wilson, at 95 %
    requests_per_s, output_tokens_per_s   of requests that met all objectives, in the window of ``Rates.achieved``
    """

    objectives: Objectives
    judged: int
    met: int
    attainment: float | None
    interval: Interval
    requests_per_s: float | None
    output_tokens_per_s: float | None
    misses: Misses

    @classmethod
    def of(cls, figures: Sequence[RequestFigures], objectives: Objectives, length_s: float) -> MeasuredGoodput:
        missed = [misses(each, objectives) for each in figures]
        good = [each for each, names in zip(figures, missed, strict=True) if names == ()]
        judged = sum(1 for names in missed if names is not None)
        tokens = sum(each.output_tokens for each in good)
        return cls(
            objectives=objectives,
            judged=judged,
            met=len(good),
            attainment=len(good) / judged if judged else None,
            interval=wilson(len(good), judged),
            requests_per_s=len(good) / length_s if length_s else None,
            output_tokens_per_s=tokens / length_s if length_s else None,
            misses=Misses(**Counter(name for names in missed for name in names or ())),
        )


@dataclass(frozen=True, slots=True)
class MlperfScenario:
    """A server scenario of MLPerf Inference: its limits of P99, in seconds."""

    name: str
    ttft_p99_s: float
    tpot_p99_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run is within the limits of a scenario. Its model and lengths may be others than the scenario's."""

    scenario: MlperfScenario
    met: bool


SCENARIOS: Final = (
    MlperfScenario("llama2-70b", 2.0, 0.2),
    MlperfScenario("llama2-70b-interactive", 0.45, 0.04),
    MlperfScenario("llama3.1-405b", 6.0, 0.175),
    MlperfScenario("llama3.1-8b", 2.0, 0.1),
)


def misses(figures: RequestFigures, objectives: Objectives) -> tuple[str, ...] | None:
    """The objectives that a request missed: empty if it met all, None if that is unknown.

    A request without TPOT or gaps meets their limits; a complete request without output meets none. A request
    that was open when the run was stopped missed the limits that it had exceeded by then.
    """
    open_s = figures.open_s
    if open_s is not None:
        so_far = {"ttft": open_s if figures.ttft_s is None else figures.ttft_s, "e2e": open_s}
        return tuple(name for name, limit in objectives.limits() if so_far.get(name, 0.0) > limit) or None
    if figures.outcome in FAILURES or figures.outcome == "unfinished":
        return ("failed",)
    if not figures.chunks:
        return ("empty",)
    values = measures(figures)
    return tuple(name for name, limit in objectives.limits() if (values[name] or 0.0) > limit)


def measures(figures: RequestFigures) -> dict[str, float | None]:
    """The measures that objectives can limit, in seconds."""
    slowest = figures.longest_gap_s
    return {"ttft": figures.ttft_s, "tpot": figures.tpot_s, "itl": slowest, "e2e": figures.e2e_s}


def mlperf(ttft: MeasureDistribution, tpot: MeasureDistribution) -> tuple[Verdict, ...]:
    """The verdicts on all scenarios; a run without TTFT or TPOT meets none."""
    slow = (math.inf if ttft.p99 is None else ttft.p99, math.inf if tpot.p99 is None else tpot.p99)
    return tuple(Verdict(each, slow[0] <= each.ttft_p99_s and slow[1] <= each.tpot_p99_s) for each in SCENARIOS)
