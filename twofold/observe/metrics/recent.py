"""Gauges of the last five minutes: percentiles of latencies, and the share of the machine's limit.

``twofold:recent_latency_seconds{measure,quantile}`` is within 1 % of the exact percentile over the last 290 to 300
seconds; ``twofold:recent_latency_values`` counts the values, because a P99.9 of ten requests means little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric

from twofold.observe.metrics.engine import ENGINE, MODEL
from twofold.observe.metrics.instruments import Instruments, Labels, MetricFamily, Snapshot, Values
from twofold.observe.metrics.sliding import SlidingSeconds, SlidingSums, percentiles
from twofold.observe.served import ServedRequest

QUANTILES: Final = {"0.5": 0.5, "0.9": 0.9, "0.95": 0.95, "0.99": 0.99, "0.999": 0.999}
MEASURES: Final = ("ttft", "tpot", "itl", "e2e", "queue")
PHASES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class _Percentiles:
    """A snapshot of latencies; the percentiles are computed by its reader."""

    of: MetricFamily
    counts: list[tuple[str, str, Mapping[int, float]]]

    def family(self) -> Metric:
        series: list[tuple[Labels, float]] = []
        for model, measure, counts in self.counts:
            found = percentiles(counts, tuple(QUANTILES.values()))
            series += [((model, ENGINE, measure, name), value) for name, value in zip(QUANTILES, found, strict=False)]
        return Values(self.of, series).family()


@dataclass(slots=True)
class _Model:
    """The recent seconds of one model."""

    seconds: dict[str, SlidingSeconds] = field(
        default_factory=lambda: {measure: SlidingSeconds() for measure in MEASURES}
    )
    phases: SlidingSums[tuple[str, str]] = field(default_factory=SlidingSums)


class Recent:
    """Seconds of requests in the last five minutes. ``now`` returns seconds of a monotonic clock."""

    def __init__(self, instruments: Instruments, now: Callable[[], float]) -> None:
        self._now = now
        self._models: dict[str, _Model] = {}
        for name, text, labels, snapshot in (
            ("recent_latency_seconds", "Percentiles of the last 5 minutes.", ("measure", "quantile"), self._latencies),
            ("recent_latency_values", "Number of values of these percentiles.", ("measure",), self._sizes),
            ("roofline_share", "Least possible seconds / seconds, of 5 minutes.", ("phase",), self._shares),
        ):
            family = MetricFamily(f"twofold:{name}", text, (*MODEL, *labels))
            instruments.source(family.name, partial(snapshot, family))

    def take(self, served: ServedRequest) -> None:
        now = self._now()
        if served.model not in self._models:
            self._models[served.model] = _Model()
        model = self._models[served.model]
        for measure, seconds in _measured(served).items():
            if seconds:
                model.seconds[measure].add(seconds, now)
        took = served.phases_s
        if took:
            limits = {(phase, "limit"): served.limits_s[phase] for phase in took}
            model.phases.add({(phase, "took"): seconds for phase, seconds in took.items()} | limits, now)

    def _counts(self) -> list[tuple[str, str, Mapping[int, float]]]:
        now = self._now()
        return [
            (name, measure, seconds.counts(now))
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


def _measured(served: ServedRequest) -> dict[str, Sequence[float]]:
    """Seconds by measure."""
    return {
        "ttft": () if served.ttft_s is None else (served.ttft_s,),
        "tpot": served.tpots_s,
        "itl": served.gaps_s,
        "e2e": (served.duration_s,),
        "queue": [report.queue_s for report in served.reports],
    }
