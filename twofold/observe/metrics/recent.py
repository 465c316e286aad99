"""Gauges of the last five minutes: percentiles of latencies, and the share of the machine's limit.

``twofold:recent_latency_seconds{measure,quantile}`` is within 1 % of the exact percentile of what the last 290 to 300
seconds saw; ``twofold:recent_latency_values`` tells of how many values, for a P99.9 of ten requests means little.
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
from twofold.observe.metrics.timing import Timing, phase_seconds, tpot_s
from twofold.observe.served import ServedRequest

QUANTILES: Final = {"0.5": 0.5, "0.9": 0.9, "0.95": 0.95, "0.99": 0.99, "0.999": 0.999}
MEASURES: Final = ("ttft", "tpot", "itl", "e2e", "queue")
PHASES: Final = ("prefill", "decode")
"""A sliding sum of phase i has the seconds taken under 2 i, and the limit under 2 i + 1."""


@dataclass(frozen=True, slots=True)
class _Percentiles:
    """A still of latencies; the percentiles are worked out where it is read."""

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
    """What one model did lately."""

    seconds: dict[str, SlidingSeconds] = field(
        default_factory=lambda: {measure: SlidingSeconds() for measure in MEASURES}
    )
    phases: SlidingSums = field(default_factory=SlidingSums)


class Recent:
    """Remembers what requests took, for five minutes. ``now`` gives seconds on a clock that never goes back."""

    def __init__(self, instruments: Instruments, now: Callable[[], float]) -> None:
        self._now = now
        self._models: dict[str, _Model] = {}
        for name, text, labels, still in (
            ("recent_latency_seconds", "Percentiles of the last 5 minutes.", ("measure", "quantile"), self._latencies),
            ("recent_latency_values", "Values that these percentiles are of.", ("measure",), self._sizes),
            ("roofline_share", "Least seconds by seconds taken, of 5 minutes.", ("phase",), self._shares),
        ):
            family = MetricFamily("gauge", f"twofold:{name}", text, (*MODEL, *labels))
            instruments.source(family.name, partial(still, family))

    def take(self, served: ServedRequest, timing: Timing) -> None:
        now, model = self._now(), self._models.setdefault(served.model, _Model())
        for measure, seconds in _measured(served, timing).items():
            if seconds:
                model.seconds[measure].add(seconds, now)
        took = phase_seconds(served)
        if took:
            sums = {2 * i: took[phase] for i, phase in enumerate(PHASES) if phase in took}
            limits = {2 * i + 1: served.limits_s[phase] for i, phase in enumerate(PHASES) if phase in took}
            model.phases.add(sums | limits, now)

    def _latencies(self, family: MetricFamily) -> Snapshot:
        now = self._now()
        return _Percentiles(
            family,
            [
                (name, measure, seconds.counts(now))
                for name, model in self._models.items()
                for measure, seconds in model.seconds.items()
            ],
        )

    def _sizes(self, family: MetricFamily) -> Snapshot:
        now = self._now()
        series = [
            ((name, ENGINE, measure), sum(seconds.counts(now).values()))
            for name, model in self._models.items()
            for measure, seconds in model.seconds.items()
        ]
        return Values(family, series)

    def _shares(self, family: MetricFamily) -> Snapshot:
        now = self._now()
        series: list[tuple[Labels, float]] = []
        for name, model in self._models.items():
            sums = model.phases.sums(now)
            for i, phase in enumerate(PHASES):
                if took := sums.get(2 * i):
                    series.append(((name, ENGINE, phase), sums.get(2 * i + 1, 0.0) / took))
        return Values(family, series)


def _measured(served: ServedRequest, timing: Timing) -> dict[str, Sequence[float]]:
    """Seconds by measure."""
    tpots = [tpot for report in served.reports if (tpot := tpot_s(report)) is not None]
    return {
        "ttft": () if timing.ttft_s is None else (timing.ttft_s,),
        "tpot": tpots,
        "itl": served.gaps_s,
        "e2e": (timing.e2e_s,),
        "queue": [report.queue_s for report in served.reports],
    }
