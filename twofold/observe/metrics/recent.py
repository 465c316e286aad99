"""Gauges of the last five minutes: percentiles of latencies, and the share of the machine's limit that was reached.

``twofold:recent_latency_seconds{measure,quantile}`` is within 1 % of the exact percentile over the last 290 to 300
seconds; ``twofold:recent_latency_values`` counts the values, because a P99.9 of ten requests means little.

The window slides slot by slot and covers between 29 and 30 slots of time. A value is in bucket i where
γ^(i−1) < value ≤ γ^i, with γ = (1 + α) / (1 − α), and is reported as 2 γ^i / (γ + 1), with a relative error of at most
α (DDSketch: Masson, Rim, Lee, VLDB 2019). With α = 1 % and values from 10 µs to a day there are fewer than 1,200
buckets, so the memory of 30 slots is bounded; values outside of this range count as its nearest end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Any, Final, Generic, TypeVar

from prometheus_client.metrics_core import Metric

from twofold.core.record import WaitReason
from twofold.observe.metrics.engine import ENGINE, MODEL
from twofold.observe.metrics.instruments import Instruments, Labels, LabelValues, MetricFamily, Snapshot, Values
from twofold.observe.served import ServedRequest

K = TypeVar("K", bound=Hashable)

WINDOW_S: Final = 300.0
SLOTS: Final = 30
ERROR: Final = 0.01
SHORTEST_S: Final = 1e-5
LONGEST_S: Final = 86_400.0
GROWTH: Final = (1 + ERROR) / (1 - ERROR)
BOUNDS: Final = tuple(
    SHORTEST_S * GROWTH**index for index in range(ceil(log(LONGEST_S / SHORTEST_S) / log(GROWTH)) + 1)
)
ROUNDING: Final = 1e-9
"""A sum that is not larger is the rounding error of subtracting all its parts."""
QUANTILES: Final = {"0.5": 0.5, "0.9": 0.9, "0.95": 0.95, "0.99": 0.99, "0.999": 0.999}
MEASURES: Final = ("ttft", "tpot", "itl", "e2e", "queue")
PHASES: Final = ("prefill", "decode")
MAX_TENANTS: Final = 100


class SlidingSums(Generic[K]):
    """Sums by key over the last ``window_s`` seconds. ``now`` never decreases."""

    def __init__(self, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        self._slot_s = window_s / slots
        self._slots: deque[tuple[int, dict[K, float]]] = deque()
        self._max_slots = slots
        self._sums: dict[K, float] = {}

    def add(self, amounts: Mapping[K, float], now: float) -> None:
        self._forget(now)
        number = int(now / self._slot_s)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for key, amount in amounts.items():
            slot[key] = slot.get(key, 0.0) + amount
            self._sums[key] = self._sums.get(key, 0.0) + amount

    def sums(self, now: float) -> dict[K, float]:
        """A copy of the sums. Keys without a value in the window are omitted."""
        self._forget(now)
        return self._sums.copy()

    def _forget(self, now: float) -> None:
        oldest = int(now / self._slot_s) - self._max_slots + 1
        while self._slots and self._slots[0][0] < oldest:
            for key, amount in self._slots.popleft()[1].items():
                left = self._sums[key] - amount
                if left > ROUNDING:
                    self._sums[key] = left
                else:
                    del self._sums[key]


def buckets(seconds: Iterable[float]) -> Counter[int]:
    """The number of durations in each bucket, for ``SlidingSums`` and ``percentiles``."""
    return Counter(map(partial(bisect_left, BOUNDS), seconds))


def percentiles(counts: Mapping[int, float], shares: Sequence[float]) -> list[float]:
    """For each share, the seconds that this share of the values does not exceed, within ERROR; empty without values.

    The value of a share q is the one of rank ⌈q · n⌉, as in numpy's ``inverted_cdf``.
    """
    if not counts:
        return []
    buckets = sorted(counts)
    upto = list(accumulate(round(counts[bucket]) for bucket in buckets))
    ranks = [max(1, ceil(share * upto[-1] - ROUNDING)) for share in shares]
    found = (min(buckets[bisect_left(upto, rank)], len(BOUNDS) - 1) for rank in ranks)
    return [BOUNDS[bucket] * 2 / (GROWTH + 1) for bucket in found]


@dataclass(frozen=True, slots=True)
class _Percentiles:
    """A snapshot of latencies; ``family`` computes the percentiles."""

    of: MetricFamily
    counts: list[tuple[str, str, Mapping[int, float]]]

    def family(self) -> Metric:
        series: list[tuple[Labels, float]] = []
        for model, measure, counts in self.counts:
            found = percentiles(counts, tuple(QUANTILES.values()))
            series += [((model, ENGINE, measure, name), value) for name, value in zip(QUANTILES, found, strict=False)]
        return Values(self.of, series).family()


@dataclass(slots=True)
class _Times:
    """Recent times by measure."""

    seconds: dict[str, SlidingSums[int]] = field(
        default_factory=lambda: {measure: SlidingSums() for measure in MEASURES}
    )

    def add(self, counts: Mapping[str, Mapping[int, float]], now: float) -> None:
        for measure, values in counts.items():
            self.seconds[measure].add(values, now)

    def lately(self, now: float) -> dict[str, list[float]]:
        """By measure P50, P99, and the number of values; measures without a value are omitted."""
        found = {measure: sums.sums(now) for measure, sums in self.seconds.items()}
        return {
            measure: [*percentiles(counts, (0.5, 0.99)), round(sum(counts.values()))]
            for measure, counts in found.items()
            if counts
        }


@dataclass(slots=True)
class _Model(_Times):
    """Recent times of one model, also by tier and tenant; seconds by phase with the machine's limit, and by cause of
    stalls; and requests by tier and whether they met its objective."""

    tiers: dict[str, _Times] = field(default_factory=dict)
    tenants: dict[str, _Times] = field(default_factory=dict)
    phases: SlidingSums[tuple[str, str]] = field(default_factory=SlidingSums)
    stalls: SlidingSums[str] = field(default_factory=SlidingSums)
    outcomes: SlidingSums[tuple[str, bool]] = field(default_factory=SlidingSums)


class Recent:
    """Times of requests in the last five minutes. ``now`` returns seconds of a monotonic clock."""

    def __init__(self, instruments: Instruments, now: Callable[[], float]) -> None:
        self._now = now
        self._models: dict[str, _Model] = {}
        self._tenants = LabelValues(MAX_TENANTS)
        for name, text, labels, snapshot in (
            ("recent_latency_seconds", "Percentiles of the last 5 minutes.", ("measure", "quantile"), self._latencies),
            ("recent_latency_values", "Number of values of these percentiles.", ("measure",), self._sizes),
            ("roofline_share", "Least possible seconds / seconds, of 5 minutes.", ("phase",), self._shares),
        ):
            family = MetricFamily(f"twofold:{name}", text, (*MODEL, *labels))
            instruments.source(family.name, partial(snapshot, family))

    def on_served(self, served: ServedRequest) -> None:
        """``ServedObserver``, for requests that an engine ran."""
        measured: dict[str, Sequence[float]] = {
            "ttft": () if served.ttft_s is None else (served.ttft_s,),
            "tpot": served.tpots_s,
            "itl": served.gaps_s,
            "e2e": (served.duration_s,),
            "queue": [report.queue_s for report in served.reports],
        }
        self.add(served.model, served.tier, served.tenant, measured)
        for report in served.reports:
            self.add_stalls(served.model, report.record.stalls)
        now, model, took = self._now(), self._of(served.model), served.phases_s
        if took:
            limits = {(phase, "limit"): served.limits_s[phase] for phase in took}
            model.phases.add({(phase, "took"): seconds for phase, seconds in took.items()} | limits, now)

    def add(self, name: str, tier: str, tenant: str, measured: Mapping[str, Sequence[float]]) -> None:
        """Adds seconds by measure, of a request or of several of one tenant."""
        now, model = self._now(), self._of(name)
        counts = {measure: buckets(seconds) for measure, seconds in measured.items() if seconds}
        for times in (
            model,
            model.tiers.setdefault(tier, _Times()),
            model.tenants.setdefault(self._tenants.of(tenant), _Times()),
        ):
            times.add(counts, now)

    def add_stalls(self, name: str, stalls: Mapping[WaitReason, float]) -> None:
        """Adds the seconds that a sequence waited, by cause."""
        self._of(name).stalls.add({cause.value: seconds for cause, seconds in stalls.items()}, self._now())

    def on_outcome(self, served: ServedRequest, *, met: bool) -> None:
        """Counts a request that met the objective of its tier, or missed it."""
        if served.model:
            self._of(served.model).outcomes.add({(served.tier, met): 1}, self._now())

    def lately(self, name: str) -> dict[str, Any]:
        """The last five minutes of a model: P50, P99 and number of values by measure, for ``all`` requests, by tier and
        by tenant; requests that met and missed the objective of their tier; seconds by cause of stalls; and the share
        of the machine's limit by phase."""
        now, model = self._now(), self._models.get(name) or _Model()
        outcomes, phases = model.outcomes.sums(now), model.phases.sums(now)
        return {
            "all": model.lately(now),
            "tiers": {tier: times.lately(now) for tier, times in model.tiers.items()},
            "tenants": {tenant: times.lately(now) for tenant, times in model.tenants.items()},
            "met": {
                tier: [round(outcomes.get((tier, True), 0)), round(outcomes.get((tier, False), 0))]
                for tier in sorted({tier for tier, _ in outcomes})
            },
            "stalls": model.stalls.sums(now),
            "share": {
                phase: phases.get((phase, "limit"), 0.0) / took
                for phase in PHASES
                if (took := phases.get((phase, "took")))
            },
        }

    def _of(self, name: str) -> _Model:
        if name not in self._models:
            self._models[name] = _Model()
        return self._models[name]

    def _counts(self) -> list[tuple[str, str, Mapping[int, float]]]:
        now = self._now()
        return [
            (name, measure, seconds.sums(now))
            for name, model in self._models.items()
            for measure, seconds in model.seconds.items()
        ]

    def _latencies(self, family: MetricFamily) -> Snapshot:
        return _Percentiles(family, self._counts())

    def _sizes(self, family: MetricFamily) -> Snapshot:
        counted = self._counts()
        return Values(family, [((name, ENGINE, measure), sum(counts.values())) for name, measure, counts in counted])

    def _shares(self, family: MetricFamily) -> Snapshot:
        now = self._now()
        series: list[tuple[Labels, float]] = []
        for name, model in self._models.items():
            sums = model.phases.sums(now)
            series += [
                ((name, ENGINE, phase), sums.get((phase, "limit"), 0.0) / took)
                for phase in PHASES
                if (took := sums.get((phase, "took")))
            ]
        return Values(family, series)
