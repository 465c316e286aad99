"""Two benches side by side: what is better, what is worse, and what is noise.

A figure is noise where the interval of its ratio holds 1. Many figures are looked at, so each has a confidence of 99 %:
of a hundred that do not differ, one is called better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from twofold.bench.compare.bootstrap import BootstrapSamples, nearest_rank, ratio_interval
from twofold.bench.compare.series import MEASURES, Point, Series, Side, objectives_of, point_of, points, side_of
from twofold.bench.compare.settings import Difference, differences
from twofold.bench.draw.form import duration, number
from twofold.bench.metrics.distribution import Floats, Interval
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.record import plain
from twofold.bench.report.document import Document, Run
from twofold.core.errors import ParameterError

CONFIDENCE: Final = 0.99
FEWEST: Final = 10
"""Requests of a run that can be compared."""

SHARES: Final = (("p50", 0.5, 1), ("p90", 0.9, 30), ("p99", 0.99, 300))
"""Percentiles, and the requests without which they are not compared."""

NAMES: Final = {
    "ttft_s": "TTFT",
    "ttft_sent_s": "TTFT from send",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "itl_s": "ITL",
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "answered_share": "answered",
    "attainment": "met objectives",
}

Verdict: TypeAlias = Literal["better", "worse", "noise", "unknown"]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure in both: ``b`` against ``a``.

    measure   as a document calls it, with its unit; ``statistic`` is a percentile, or the mean
    ratio     b / a; None where it is not known
    interval  of the ratio
    verdict   on ``b``: ``unknown`` where there is no ratio
    """

    measure: str
    statistic: str
    a: float | None
    b: float | None
    ratio: float | None
    interval: Interval | None
    verdict: Verdict

    def cells(self) -> tuple[str, ...]:
        """As a table shows it: figure, a, b, change, its interval, verdict."""
        change = "" if self.ratio is None else _percent(self.ratio)
        band = "" if self.interval is None else f"{_percent(self.interval.low)} … {_percent(self.interval.high)}"
        return self.name, self._value(self.a), self._value(self.b), change, band, self.verdict

    @property
    def name(self) -> str:
        """As people say it: TTFT P99."""
        known = NAMES.get(self.measure, self.measure)
        return known if self.statistic == "mean" else f"{known} {self.statistic.upper()}"

    def _value(self, value: float | None) -> str:
        return duration(value) if self.measure.endswith("_s") and "per" not in self.measure else number(value)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both at one point of load. ``n`` are the requests of each."""

    point: Point
    n: tuple[int, int]
    rows: tuple[ComparedFigure, ...]

    def words(self) -> str:
        """What is beyond chance, in a sentence."""
        where = " and ".join(f"{name} {value:g}" for name, value in self.point)
        told = [f"{row.name} {_percent(row.ratio)}" for row in self.rows if _sure(row) and row.ratio]
        what = f"beyond chance: {', '.join(told)}" if told else "all differences may be chance"
        return f"At {where}, {what}." if where else f"{what[0].upper()}{what[1:]}."


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two documents.

    differences  besides figures, weighty ones first
    pairs        one for each point of load that both have
    alone        points that only one of them has
    """

    confidence: float
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    alone: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain(self)
        return document


def compare(a: Document, b: Document, *, seed: int = 0, confidence: float = CONFIDENCE) -> Comparison:
    """``b`` against ``a``. The same seed gives the same intervals.

    Both are judged by the objectives of ``a``, or else of ``b``.

    Raises ParameterError where one of them holds no requests, or they have no point of load in common.
    """
    pairs, alone = _paired(a, b)
    objectives = objectives_of((*a.runs, *b.runs))
    made = []
    for point, one, two in pairs:
        first, second = _side(one, "a", objectives), _side(two, "b", objectives)
        made.append(Pair(point, (first.n, second.n), tuple(_rows(first, second, seed, confidence))))
    _, one, two = pairs[0]
    return Comparison(confidence, differences(a, b, (one[0], two[0])), tuple(made), alone)


def _paired(a: Document, b: Document) -> tuple[list[tuple[Point, list[Run], list[Run]]], tuple[Point, ...]]:
    """Runs at the same point; one point on each side belongs together, whatever it is."""
    first, second = points(a.runs), points(b.runs)
    for name, found in (("a", first), ("b", second)):
        if not found:
            raise ParameterError(f"Document {name} has no runs.", param="document")
    if len(first) == len(second) == 1:
        ((point, one),), (two,) = first.items(), second.values()
        return [(point if point == point_of(two[0].load) else (), one, two)], ()
    both = [(point, first[point], second[point]) for point in first if point in second]
    if not both:
        raise ParameterError(
            "The documents have no rate or concurrency in common.",
            param="document",
            hint="Measure both at the same rates.",
        )
    return both, tuple(point for point in (*first, *second) if not (point in first and point in second))


def _side(runs: list[Run], name: str, objectives: Objectives | None) -> Side:
    measured = sum(1 for run in runs for request in run.requests if request.measured)
    if measured < FEWEST:
        raise ParameterError(
            f"Document {name} has {measured} measured requests; a comparison needs at least {FEWEST}.",
            param="document",
            hint="A document from --json has none; --output FILE.json stores them all.",
        )
    return side_of(runs, objectives)


def _rows(a: Side, b: Side, seed: int, confidence: float) -> Iterator[ComparedFigure]:
    draws = _draws(a, 2 * seed), _draws(b, 2 * seed + 1)
    for name in MEASURES:
        yield from _percentiles(name, (a.measures[name], b.measures[name]), draws, confidence)
    if a.gaps is not None and b.gaps is not None:
        yield from _percentiles("itl_s", (a.gaps, b.gaps), draws, confidence)
    for flow in a.flows:
        slices = a.flows[flow], b.flows[flow]
        own = BootstrapSamples.of(slices[0].values, 2 * seed), BootstrapSamples.of(slices[1].values, 2 * seed + 1)
        yield _mean(flow, slices, own, confidence)
    yield _mean("answered_share", (a.answered, b.answered), draws, confidence)
    if a.met is not None and b.met is not None and len(a.met.values) and len(b.met.values):
        yield _mean("attainment", (a.met, b.met), draws, confidence)


def _mean(
    name: str, series: tuple[Series, Series], draws: tuple[BootstrapSamples, BootstrapSamples], confidence: float
) -> ComparedFigure:
    drawn = [each.means(of.values, of.owner) for each, of in zip(draws, series, strict=True)]
    seen = float(series[0].values.mean()), float(series[1].values.mean())
    return _row(name, "mean", seen, (drawn[0], drawn[1]), confidence)


def _percentiles(
    name: str, series: tuple[Series, Series], draws: tuple[BootstrapSamples, BootstrapSamples], confidence: float
) -> Iterator[ComparedFigure]:
    least = min(len(np.unique(each.owner)) for each in series)
    shares = {statistic: share for statistic, share, needed in SHARES if least >= needed}
    ascending = [np.sort(each.values) for each in series]
    drawn = [
        each.quantiles(of.values, of.owner, tuple(shares.values())) for each, of in zip(draws, series, strict=True)
    ]
    for at, (statistic, share) in enumerate(shares.items()):
        seen = nearest_rank(ascending[0], share), nearest_rank(ascending[1], share)
        yield _row(name, statistic, seen, (drawn[0][at], drawn[1][at]), confidence)


def _row(
    measure: str, statistic: str, seen: tuple[float, float], drawn: tuple[Floats, Floats], confidence: float
) -> ComparedFigure:
    found = ratio_interval(*drawn, confidence)
    ratio = _ratio(*seen)
    interval = None if found is None or ratio is None else Interval(*found)
    return ComparedFigure(measure, statistic, *seen, ratio, interval, _verdict(measure, interval))


def _verdict(measure: str, interval: Interval | None) -> Verdict:
    """Latency is better when it is less; rates and shares when they are more."""
    if interval is None:
        return "unknown"
    if interval.low <= 1 <= interval.high:
        return "noise"
    less = interval.high < 1
    return "better" if less == (measure.endswith("_s") and not measure.endswith("per_s")) else "worse"


def _draws(side: Side, seed: int) -> BootstrapSamples:
    """Blocks as long as the dependence of TTFT asks for; what failed is infinitely slow there."""
    ttft = side.measures["ttft_s"]
    values = np.full(side.n, np.median(ttft.values) if len(ttft.values) else 0.0)
    values[ttft.owner] = ttft.values
    return BootstrapSamples.of(values, seed)


def _ratio(a: float, b: float) -> float | None:
    if math.isinf(a) and math.isinf(b):
        return 1.0
    return b / a if a else None


def _sure(row: ComparedFigure) -> bool:
    return row.verdict in ("better", "worse")


def _percent(ratio: float | None) -> str:
    if ratio is None:
        return "unknown"
    return "∞" if math.isinf(ratio) else f"{100 * (ratio - 1):+.3g}%"
