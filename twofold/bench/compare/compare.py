"""Compares two documents: better, worse, or noise.

A figure is noise if the interval of its ratio contains 1. Many figures are compared, so each has a confidence of 99 %:
of a hundred equal ones, one is called better or worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from twofold.bench.compare.bootstrap import BootstrapSamples, ratio_interval
from twofold.bench.compare.series import MEASURES, Point, Series, Side, objectives_of, point_of, points, side_of
from twofold.bench.draw.form import duration, number
from twofold.bench.metrics.distribution import Floats, Interval, nearest_rank
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.record import plain
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import look
from twofold.core.errors import ParameterError

CONFIDENCE: Final = 0.99
FEWEST: Final = 10
"""Minimum number of requests of a run."""

SHARES: Final = (("p50", 0.5, 1), ("p90", 0.9, 30), ("p99", 0.99, 300))
"""Percentiles, and the minimum number of requests for each."""

EXPECTED: Final = ("target.url", "target.server", "settings.url", "settings.seed", "target.details.prompts.seed")
"""Settings that may differ between comparable runs."""

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
class Difference:
    """Values of a setting at ``path``; None is missing. ``expected``: it does not make figures incomparable."""

    path: str
    a: Any
    b: Any
    expected: bool

    def words(self) -> str:
        a, b = ("nothing" if value is None else f"{value!s:.80}" for value in (self.a, self.b))
        return f"{self.path}: {a} and {b}"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of ``b`` against ``a``.

    measure   its name in documents; ``statistic`` is a percentile or the mean
    ratio     b / a; None if unknown
    interval  of the ratio
    verdict   on ``b``; ``unknown`` without a ratio
    """

    measure: str
    statistic: str
    a: float | None
    b: float | None
    ratio: float | None
    interval: Interval | None
    verdict: Verdict

    def cells(self) -> tuple[str, ...]:
        """Cells of a table: figure, a, b, change, its interval, verdict."""
        change = "" if self.ratio is None else _percent(self.ratio)
        band = "" if self.interval is None else f"{_percent(self.interval.low)} … {_percent(self.interval.high)}"
        return self.name, self._value(self.a), self._value(self.b), change, band, self.verdict

    @property
    def name(self) -> str:
        """The name in tables: TTFT P99."""
        known = NAMES.get(self.measure, self.measure)
        return known if self.statistic == "mean" else f"{known} {self.statistic.upper()}"

    def _value(self, value: float | None) -> str:
        return duration(value) if self.measure.endswith("_s") and "per" not in self.measure else number(value)


@dataclass(frozen=True, slots=True)
class Pair:
    """Figures of both at one load point; ``n`` are the numbers of requests."""

    point: Point
    n: tuple[int, int]
    rows: tuple[ComparedFigure, ...]

    def words(self) -> str:
        """The significant differences in a sentence."""
        where = " and ".join(f"{name} {value:g}" for name, value in self.point)
        sure = [(row.name, row.ratio) for row in self.rows if row.verdict in ("better", "worse")]
        changes = ", ".join(f"{name} {_percent(ratio)}" for name, ratio in sure if ratio)
        what = f"beyond chance: {changes}" if changes else "all differences may be chance"
        return f"At {where}, {what}." if where else f"{what[0].upper()}{what[1:]}."


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two documents.

    differences  in settings, unexpected ones first
    pairs        one for each common load point
    alone        load points of only one document
    """

    confidence: float
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    alone: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain(self)
        return document


def compare(a: Document, b: Document, *, seed: int = 0, confidence: float = CONFIDENCE) -> Comparison:
    """Compares ``b`` to ``a``, both by the objectives of ``a`` or else of ``b``. Deterministic for a seed.

    Raises ParameterError if one has too few requests, or if they have no common load point.
    """
    pairs, alone = _paired(a, b)
    objectives = objectives_of((*a.runs, *b.runs))
    made = []
    for point, one, two in pairs:
        first, second = _side(one, "a", objectives), _side(two, "b", objectives)
        made.append(Pair(point, (first.n, second.n), tuple(_rows(first, second, seed, confidence))))
    _, one, two = pairs[0]
    return Comparison(confidence, differences(a, b, (one[0], two[0])), tuple(made), alone)


def differences(a: Document, b: Document, runs: tuple[Run, Run]) -> tuple[Difference, ...]:
    """Differences in settings, targets and loads, unexpected ones first; ``runs`` have the compared loads."""
    first, second = dict(_flat(_settings(a, runs[0]))), dict(_flat(_settings(b, runs[1])))
    found = [
        Difference(path, first.get(path), second.get(path), path in EXPECTED or path.rpartition(".")[2] == "seed")
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    ]
    return tuple(sorted(found, key=lambda each: each.expected))


def _settings(document: Document, run: Run) -> dict[str, Any]:
    target, machine = document.target, document.machine
    return {
        "version": document.version,
        "command": document.command,
        "target": msgspec.structs.asdict(target),
        "client": {
            **{name: getattr(machine, name) for name in ("processor", "usable_threads", "system", "python")},
            "stamps": run.client.stamps,
        },
        "settings": document.settings,
        "load": run.load,
        "rule": {name: look(run.summary, "measured", name) for name in ("warmup_s", "cooldown_s")},
        "objectives": look(run.summary, "goodput", "objectives"),
    }


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        path = f"{before}{name}"
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}.")
        elif item is not None:
            yield path, item


def _paired(a: Document, b: Document) -> tuple[list[tuple[Point, list[Run], list[Run]]], tuple[Point, ...]]:
    """Runs at common load points; if each document has one point, they are paired in any case."""
    first, second = points(a.runs), points(b.runs)
    for name, found in (("a", first), ("b", second)):
        if not found:
            raise ParameterError(f"Document {name} has no runs.", param="document")
    if len(first) == len(second) == 1:
        ((point, one),), (two,) = first.items(), second.values()
        return [(point if point == point_of(two[0].load) else (), one, two)], ()
    both = [(point, first[point], second[point]) for point in first if point in second]
    if not both:
        message = "The documents have no rate or concurrency in common."
        raise ParameterError(message, param="document", hint="Measure both at the same rates.")
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
    """Lower latency is better, and higher rates and shares."""
    (a, b), found = seen, ratio_interval(*drawn, confidence)
    ratio = 1.0 if math.isinf(a) and math.isinf(b) else b / a if a else None
    interval = None if found is None or ratio is None else Interval(*found)
    verdict: Verdict = "unknown"
    if interval is not None:
        latency, less = measure.endswith("_s") and not measure.endswith("per_s"), interval.high < 1
        verdict = "noise" if interval.low <= 1 <= interval.high else "better" if less == latency else "worse"
    return ComparedFigure(measure, statistic, a, b, ratio, interval, verdict)


def _draws(side: Side, seed: int) -> BootstrapSamples:
    """Draws with blocks for TTFT, in which failures are infinite."""
    ttft = side.measures["ttft_s"]
    values = np.full(side.n, np.median(ttft.values) if len(ttft.values) else 0.0)
    values[ttft.owner] = ttft.values
    return BootstrapSamples.of(values, seed)


def _percent(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{100 * (ratio - 1):+.3g}%"
