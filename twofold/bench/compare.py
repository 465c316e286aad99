"""Compares two documents: each figure is better, worse, or noise.

A figure is noise if the confidence interval of its ratio contains 1. Many figures are compared, so the confidence of
each is 99 %: of a hundred figures that do not differ, about one is called better or worse.

Intervals are found by bootstrap. Consecutive requests share a queue, so blocks of neighbours are resampled, with the
ends joined (Hans R. Künsch, "The jackknife and the bootstrap for general stationary observations", 1989; Dimitris N.
Politis and Joseph P. Romano, "A circular block-resampling procedure for stationary data", 1992). A block is twice as
long as the correlation time of the values, and at least n^(1/3), the order that minimises the error of the method.
Variation between starts of a server is in no single run, and so not in these intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from twofold.bench.draw.form import duration, number, share
from twofold.bench.metrics.distribution import Floats, Interval
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.record import plain
from twofold.bench.report import figures
from twofold.bench.report.document import Document, Request, Run
from twofold.bench.search import correlation_time
from twofold.core.errors import ParameterError
from twofold.core.ranks import nearest_rank

CONFIDENCE: Final = 0.99
MIN_REQUESTS: Final = 10
"""Minimum number of measured requests at a load point."""

PERCENTILES: Final = (("p50", 0.5, 1), ("p90", 0.9, 30), ("p99", 0.99, 300))
"""Percentiles, and the minimum number of requests for each."""

EXPECTED: Final = ("target.url", "target.server")
"""Settings that may differ between comparable runs; seeds may differ too."""

NAMES: Final = {
    "ttft_s": "TTFT",
    "ttft_sent_s": "TTFT from send",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "itl_s": "ITL",
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "answered_share": "completed",
    "attainment": "met objectives",
}

Verdict: TypeAlias = Literal["better", "worse", "noise", "unknown"]

SLICES: Final = 48
"""Time slices of a run for rates."""

LoadPoint: TypeAlias = tuple[tuple[str, float], ...]
"""A load point: rate and concurrency, as far as the load has them."""

MEASURES: Final = ("ttft_s", "ttft_sent_s", "tpot_s", "e2e_s")

Counts: TypeAlias = npt.NDArray[np.int32]
Rows: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint32]

MAX_RESAMPLES: Final = 1000
MIN_RESAMPLES: Final = 200
MAX_CELLS: Final = 10_000_000
"""Maximum of resamples times requests."""
MAX_WORK: Final = 100_000_000
"""Maximum of resamples times values in the quantiles of a measure."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Values of the setting at ``path``; None if it is missing. ``expected``: the figures stay comparable."""

    path: str
    a: Any
    b: Any
    expected: bool

    def words(self) -> str:
        a, b = ("nothing" if value is None else f"{value!s:.80}" for value in (self.a, self.b))
        return f"{self.path}: {a} in a, {b} in b"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of ``b`` compared with the same figure of ``a``.

    measure   name in documents; ``statistic`` is a percentile or the mean
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
        """The row of a table: figure, a, b, change, interval of the change, verdict."""
        change = "" if self.ratio is None else _change(self.ratio)
        band = "" if self.interval is None else f"{_change(self.interval.low)} … {_change(self.interval.high)}"
        return self.name, self._value(self.a), self._value(self.b), change, band, self.verdict

    @property
    def name(self) -> str:
        """The name in tables: TTFT P99."""
        known = NAMES.get(self.measure, self.measure)
        return known if self.statistic == "mean" else f"{known} {self.statistic.upper()}"

    def _value(self, value: float | None) -> str:
        if self.measure.endswith("per_s"):
            return number(value)
        return duration(value) if self.measure.endswith("_s") else share(value)


@dataclass(frozen=True, slots=True)
class Pair:
    """Figures of both documents at one load point; ``n`` are their numbers of requests."""

    point: LoadPoint
    n: tuple[int, int]
    rows: tuple[ComparedFigure, ...]

    def words(self) -> str:
        """The significant differences in a sentence."""
        where = point_words(self.point)
        sure = [(row.name, row.ratio) for row in self.rows if row.verdict in ("better", "worse")]
        changes = ", ".join(f"{name} {_change(ratio)}" for name, ratio in sure if ratio)
        what = f"beyond chance: {changes}" if changes else "all differences may be chance"
        return f"At {where}, {what}." if where else f"{what[0].upper()}{what[1:]}."


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two documents.

    differences  in settings, unexpected ones first
    pairs        one for each common load point
    alone        load points that only one document has
    """

    confidence: float
    differences: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    alone: tuple[LoadPoint, ...]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain(self)
        return document


def compare(a: Document, b: Document, *, seed: int = 0) -> Comparison:
    """Compares ``b`` to ``a``, both by the objectives of ``a`` or else of ``b``. Deterministic for a seed.

    Raises ParameterError if a document has too few requests, or if there is no common load point.
    """
    pairs, alone = _paired(a, b)
    objectives = _objectives_of((*a.runs, *b.runs))
    made = []
    for point, one, two in pairs:
        first, second = _side(one, "a", objectives), _side(two, "b", objectives)
        made.append(Pair(point, (first.n, second.n), tuple(_rows(first, second, seed))))
    _, one, two = pairs[0]
    return Comparison(CONFIDENCE, _differences(a, b, (one[0], two[0])), tuple(made), alone)


def _differences(a: Document, b: Document, runs: tuple[Run, Run]) -> tuple[Difference, ...]:
    """Differences in settings, targets and the loads of ``runs``, unexpected ones first."""
    first, second = dict(figures.flat(_settings(a, runs[0]))), dict(figures.flat(_settings(b, runs[1])))
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
        "rule": {name: figures.value_at(run.summary, "measured", name) for name in ("warmup_s", "cooldown_s")},
        "objectives": figures.value_at(run.summary, "goodput", "objectives"),
    }


def _paired(a: Document, b: Document) -> tuple[list[tuple[LoadPoint, list[Run], list[Run]]], tuple[LoadPoint, ...]]:
    """The runs at common load points, and the other load points. Documents with one point each are always paired."""
    first: dict[LoadPoint, list[Run]] = {}
    second: dict[LoadPoint, list[Run]] = {}
    for name, document, found in (("a", a, first), ("b", b, second)):
        for run in document.runs:
            found.setdefault(_point_of(run.load), []).append(run)
        if not found:
            raise ParameterError(f"Document {name} has no runs.", param="document")
    if len(first) == len(second) == 1:
        ((point, one),), (two,) = first.items(), second.values()
        return [(point if point == _point_of(two[0].load) else (), one, two)], ()
    both = [(point, first[point], second[point]) for point in first if point in second]
    if not both:
        message = "The documents have no rate or concurrency in common."
        raise ParameterError(message, param="document", hint="Measure both at the same rates.")
    return both, tuple(point for point in (*first, *second) if not (point in first and point in second))


def _rows(a: Side, b: Side, seed: int) -> Iterator[ComparedFigure]:
    seeds = 2 * seed, 2 * seed + 1
    samples = _resampled(a, seeds[0]), _resampled(b, seeds[1])
    for name, series in a.measures.items():
        if name in b.measures:
            yield from _percentiles(name, (series, b.measures[name]), samples)
    for name, series in a.flows.items():
        pair = series, b.flows[name]
        yield _mean(name, pair, [Resamples.of(each.values, own) for each, own in zip(pair, seeds, strict=True)])
    for name, series in a.shares.items():
        if name in b.shares:
            yield _mean(name, (series, b.shares[name]), samples)


def _mean(name: str, pair: tuple[Series, Series], samples: Sequence[Resamples]) -> ComparedFigure:
    resampled = [each.means(series) for each, series in zip(samples, pair, strict=True)]
    return _row(name, "mean", [float(series.values.mean()) for series in pair], resampled)


def _percentiles(name: str, pair: tuple[Series, Series], samples: Sequence[Resamples]) -> Iterator[ComparedFigure]:
    n = min(len(np.unique(series.owner)) for series in pair)
    shares = {statistic: quantile for statistic, quantile, needed in PERCENTILES if n >= needed}
    ascending = [np.sort(series.values) for series in pair]
    resampled = [each.quantiles(series, tuple(shares.values())) for each, series in zip(samples, pair, strict=True)]
    for at, (statistic, quantile) in enumerate(shares.items()):
        seen = [nearest_rank(values, quantile) for values in ascending]
        yield _row(name, statistic, seen, [quantiles[at] for quantiles in resampled])


def _row(measure: str, statistic: str, seen: Sequence[float], resampled: Sequence[Floats]) -> ComparedFigure:
    """Compares (a, b). Lower latencies are better, and higher rates and shares."""
    (a, b), found = seen, ratio_interval(resampled[0], resampled[1], CONFIDENCE)
    ratio = 1.0 if math.isinf(a) and math.isinf(b) else b / a if a else None
    interval = None if found is None or ratio is None else Interval(*found)
    verdict: Verdict = "unknown"
    if interval is not None:
        latency, less = measure.endswith("_s") and not measure.endswith("per_s"), interval.high < 1
        verdict = "noise" if interval.low <= 1 <= interval.high else "better" if less == latency else "worse"
    return ComparedFigure(measure, statistic, a, b, ratio, interval, verdict)


def _resampled(side: Side, seed: int) -> Resamples:
    """Resamples with the block length of TTFT, in which failures are infinite."""
    ttft = side.measures["ttft_s"]
    values = np.full(side.n, np.median(ttft.values) if len(ttft.values) else 0.0)
    values[ttft.owner] = ttft.values
    return Resamples.of(values, seed)


def _change(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{100 * (ratio - 1):+.3g}%"


def point_words(point: LoadPoint) -> str:
    """rate 4 and concurrency 8; empty for a load without either."""
    return " and ".join(f"{name} {value:g}" for name, value in point)


@dataclass(frozen=True, slots=True)
class Series:
    """Values, and the index of the request that each belongs to."""

    values: Floats
    owner: Rows


@dataclass(frozen=True, slots=True)
class Side:
    """All ``n`` measured requests of a document at one load point, in order of their due times.

    measures  values of requests, in which failures are infinite; ``itl_s``: the gaps between chunks, if recorded
    flows     ``requests_per_s`` and ``output_tokens_per_s`` in each time slice
    shares    1.0 or 0.0 for each request: ``answered_share``, whether the response is complete; ``attainment``,
              whether it met all objectives, if that is known
    """

    n: int
    measures: Mapping[str, Series]
    flows: Mapping[str, Series]
    shares: Mapping[str, Series]


def _point_of(load: Mapping[str, Any]) -> LoadPoint:
    """Rate and concurrency, as far as the description of a load has them."""
    arrivals = load.get("arrivals")
    found = {**(arrivals if isinstance(arrivals, Mapping) else {}), **load}
    numbers = ((name, found.get(name)) for name in ("rate", "concurrency"))
    return tuple((name, float(value)) for name, value in numbers if isinstance(value, int | float))


def _objectives_of(runs: Iterable[Run]) -> Objectives | None:
    """The objectives of the first summary that has any; None without any."""
    known = Objectives.__slots__
    found = next((limits for run in runs if (limits := figures.objectives(run))), None)
    return None if found is None else Objectives(**{name: limit for name, limit in found.items() if name in known})


def _side(runs: Sequence[Run], name: str, objectives: Objectives | None) -> Side:
    """The side of the document ``name``. Raises ParameterError for fewer than ``MIN_REQUESTS`` measured requests."""
    measured = ((run, [request for request in run.requests if request.measured]) for run in runs)
    parts = [(run, part) for run, part in measured if part]  # an interrupted run may have none
    requests = [request for _, part in parts for request in part]
    if len(requests) < MIN_REQUESTS:
        raise ParameterError(
            f"Document {name} has {len(requests)} measured requests; a comparison needs at least {MIN_REQUESTS}.",
            param="document",
            hint="A document from --json has none; --output FILE.json stores them all.",
        )
    measures = {name: _series([value for run in runs for value in run.figures(name)]) for name in MEASURES}
    gaps = [(at, request.gaps_us) for at, request in enumerate(requests) if request.gaps_us is not None]
    if gaps:
        values = np.concatenate([np.frombuffer(each, np.int64) for _, each in gaps]) * 1e-6
        owner = np.repeat(np.array([at for at, _ in gaps], np.int64), [len(each) for _, each in gaps])
        measures["itl_s"] = Series(values, owner)
    flows = [_flows(run, part) for run, part in parts]
    shares = {"answered_share": _series([float(request.outcome == "ok") for request in requests])}
    if objectives is not None:
        met = _series([_met(each, run, objectives) for run, part in parts for each in part])
        shares |= {"attainment": met} if len(met.values) else {}
    return Side(
        n=len(requests),
        measures=measures,
        flows={name: _series(np.concatenate([flow[name] for flow in flows]).tolist()) for name in flows[0]},
        shares=shares,
    )


def _met(request: Request, run: Run, objectives: Objectives) -> float | None:
    """1.0 if the request met the objectives as defined in ``goodput.misses``, else 0.0; None if that is unknown."""
    if run.interrupted and request.outcome == "unfinished":
        return None
    if request.outcome != "ok" or not request.chunks:
        return 0.0
    if objectives.itl is not None and request.gaps_us is None:
        return None
    longest = max(request.gaps_us or (), default=0) * 1e-6
    values = {"ttft": request.ttft_s, "tpot": request.tpot_s, "itl": longest, "e2e": request.e2e_s}
    return float(all((values[name] or 0.0) <= limit for name, limit in objectives.limits()))


def _series(values: Sequence[float | None]) -> Series:
    owner = np.array([at for at, value in enumerate(values) if value is not None], np.int64)
    return Series(np.array([value for value in values if value is not None], np.float64), owner)


def _flows(run: Run, measured: Sequence[Request]) -> dict[str, Floats]:
    """Rates of complete responses and of their tokens in each time slice.

    The tokens of a response are spread evenly from its first to its last. The slices divide the window of steady rates,
    or if it is empty the time from the first due time to the last end.
    """
    start, end = (figures.number_at(run.summary, "measured", name) for name in ("from_s", "until_s"))
    if start is None or end is None or end <= start:
        start = min(request.due_s for request in measured)
        end = max(request.ended_s or request.due_s for request in measured)
    edges = np.linspace(start, end, SLICES + 1)
    slice_s = max(edges[1] - edges[0], 1e-9)
    done = [request for request in run.requests if request.outcome == "ok"]
    ended = np.sort([request.ended_s for request in done if request.ended_s is not None])
    requests = np.diff(np.searchsorted(ended, edges).astype(np.float64))
    rows = [
        (request.first_s, request.last_s, float(request.output_tokens or request.chunks))
        for request in done
        if request.first_s is not None and request.last_s is not None
    ]
    first, last, tokens = np.array(rows, np.float64).reshape(-1, 3).T
    length = np.maximum(last - first, 1e-9)
    received = [float((np.clip((edge - first) / length, 0.0, 1.0) * tokens).sum()) for edge in edges]
    return {"requests_per_s": requests / slice_s, "output_tokens_per_s": np.diff(received) / slice_s}


@dataclass(frozen=True, slots=True)
class Resamples:
    """How often each of n requests, in their order, is in each resample: counts[resamples, n]."""

    counts: Counts

    @classmethod
    def of(cls, values: Floats, seed: int) -> Resamples:
        """Resamples in blocks of a length that suits these values of requests, in their order; at least one value."""
        n = len(values)
        block = block_length(values)
        size = max(MIN_RESAMPLES, min(MAX_RESAMPLES, MAX_CELLS // n))
        return cls(_counts(_starts(seed, (size, math.ceil(n / block)), n), block, n))

    def quantiles(self, series: Series, shares: Sequence[float]) -> Floats:
        """[shares, resamples]: nearest-rank quantiles of values.

        NaN for a resample without values, and for resamples beyond the limit ``MAX_WORK``.
        """
        found = np.full((len(shares), len(self.counts)), np.nan)
        order = np.argsort(series.values, kind="stable")
        ascending, owner = series.values[order], series.owner[order]
        limit = max(MIN_RESAMPLES, MAX_WORK // max(1, len(ascending)))
        for at, counts in enumerate(self.counts[:limit]):
            passed = np.cumsum(counts[owner], dtype=np.int64)
            if len(passed) and passed[-1]:
                wanted = np.array(shares) * passed[-1] * (1 - 1e-12)
                found[:, at] = ascending[np.searchsorted(passed, wanted)]
        return found

    def means(self, series: Series) -> Floats:
        """[resamples]: the mean of values; NaN for a resample without values."""
        held = np.take(self.counts, series.owner, axis=1)
        total = held.sum(axis=1).astype(np.float64)
        mean: Floats = (held @ series.values) / np.where(total > 0, total, np.nan)
        return mean


def block_length(values: Floats) -> int:
    """Length of a block, at most a quarter of the values."""
    n = len(values)
    finite = values[np.isfinite(values)]
    top = float(finite.max()) if len(finite) else 0.0
    wanted = max(2.0 * correlation_time(np.where(np.isfinite(values), values, 2 * top)), math.cbrt(n))
    return max(1, min(math.ceil(wanted), n // 4))


def ratio_interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float] | None:
    """The interval of b/a by the percentiles of resamples (Bradley Efron, "Bootstrap methods", 1979); None if unknown.

    Infinite by infinite is 1.
    """
    n = min(len(a), len(b))
    first, second = a[:n], b[:n]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.isinf(first) & np.isinf(second), 1.0, second / first)
    known = np.sort(ratios[~np.isnan(ratios)])
    if not len(known):
        return None
    tail = (1 - confidence) / 2
    low = known[math.floor(tail * (len(known) - 1))]
    high = known[math.ceil((1 - tail) * (len(known) - 1))]
    return float(low), float(high)


def _starts(seed: int, shape: tuple[int, int], n: int) -> Rows:
    """Where blocks start among n requests, at random. The web page draws the same numbers (bench/resample.js)."""
    places = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(0x9E3779B9)
    drawn = _mixed(places + _mixed(np.array([seed & 0xFFFFFFFF], np.uint32)))
    starts: Rows = (drawn / 2.0**32 * n).astype(np.int64).reshape(shape)
    return starts


def _mixed(numbers: Words) -> Words:
    """A hash of 32 bits of each number (Chris Wellons, "Prospecting for hash functions", 2018)."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        numbers = (numbers ^ (numbers >> np.uint32(shift))) * np.uint32(factor)
    return numbers ^ (numbers >> np.uint32(15))


def _counts(starts: Rows, block: int, n: int) -> Counts:
    """The number of blocks of each resample that contain each request."""
    resamples = len(starts)
    ends = starts + block
    rows = np.arange(resamples)[:, None] * n
    edges = np.bincount((rows + starts).ravel(), minlength=resamples * n)
    edges -= np.bincount((rows + ends % n).ravel(), minlength=resamples * n)
    over_the_end = (ends >= n).sum(axis=1, keepdims=True)
    counts: Counts = np.cumsum(edges.reshape(resamples, n), axis=1, dtype=np.int32) + over_the_end.astype(np.int32)
    return counts
