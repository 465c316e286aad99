"""Goodput: what of the work met its objectives.

Three definitions are in use. (i) Requests a second that meet every objective, here with the share of requests that do.
(ii) The highest rate at which a share of them still does: ``bench.search``. (iii) MLPerf's: whether P99 of TTFT and
TPOT is within the limits of a scenario. Failures miss everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.bench.load.base import FAILURES
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.metrics.interval import Interval, wilson
from twofold.bench.metrics.objectives import Objectives
from twofold.bench.metrics.requests import RequestFigures


@dataclass(frozen=True, slots=True)
class Misses:
    """Requests that missed: because they failed or never ended, else by measure. One may miss several."""

    failed: int = 0
    empty: int = 0
    ttft: int = 0
    tpot: int = 0
    itl: int = 0
    e2e: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredGoodput:
    """Against some objectives.

    judged       requests of which it is known whether they meet every objective: all but some of those that were open
                 when the run was stopped
    interval     of ``attainment``, by Wilson, at 95 %
    requests_per_s, output_tokens_per_s   of requests that met them all, over the time of ``Rates.achieved``
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
            misses=_counted(missed),
        )


@dataclass(frozen=True, slots=True)
class MlperfScenario:
    """MLPerf Inference, server scenario: limits of P99, seconds."""

    name: str
    ttft_p99_s: float
    tpot_p99_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run is within the limits of a scenario; its model and lengths are not looked at."""

    scenario: MlperfScenario
    met: bool


SCENARIOS: Final = (
    MlperfScenario("llama2-70b", 2.0, 0.2),
    MlperfScenario("llama2-70b-interactive", 0.45, 0.04),
    MlperfScenario("llama3.1-405b", 6.0, 0.175),
    MlperfScenario("llama3.1-8b", 2.0, 0.1),
)


def misses(figures: RequestFigures, objectives: Objectives) -> tuple[str, ...] | None:
    """What a request missed; nothing where it met every objective, None where that is not known.

    A request has no TPOT and no gaps where there is nothing to measure, and so meets their limits; but one that is
    complete without output meets none.
    """
    if figures.open_s is not None:
        return _missed_already(figures, objectives, figures.open_s)
    if figures.outcome in FAILURES or figures.outcome == "unfinished":
        return ("failed",)
    if not figures.chunks:
        return ("empty",)
    values = measures(figures)
    return tuple(name for name, limit in objectives.limits() if (values[name] or 0.0) > limit)


def measures(figures: RequestFigures) -> dict[str, float | None]:
    """What each objective limits."""
    return {
        "ttft": figures.ttft_s,
        "tpot": figures.tpot_s,
        "itl": figures.longest_gap_s,
        "e2e": figures.e2e_s,
    }


def mlperf(ttft: MeasureDistribution, tpot: MeasureDistribution) -> tuple[Verdict, ...]:
    """Every scenario; none is met by a run without TTFT or TPOT."""
    return tuple(
        Verdict(each, _below(ttft.p99, each.ttft_p99_s) and _below(tpot.p99, each.tpot_p99_s)) for each in SCENARIOS
    )


def _missed_already(figures: RequestFigures, objectives: Objectives, open_s: float) -> tuple[str, ...] | None:
    """Of a request that was open when the run was stopped: the limits that it had passed by then."""
    so_far = {"ttft": open_s if figures.ttft_s is None else figures.ttft_s, "e2e": open_s}
    return tuple(name for name, limit in objectives.limits() if so_far.get(name, 0.0) > limit) or None


def _counted(missed: Sequence[tuple[str, ...] | None]) -> Misses:
    counts: dict[str, int] = {}
    for names in missed:
        for name in names or ():
            counts[name] = counts.get(name, 0) + 1
    return Misses(**counts)


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit
