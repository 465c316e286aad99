"""Trials: whether a rate can be sustained, with statistics of dependent values.

A rate is sustainable if the required share of requests meets every objective and latency does not grow. Both are
needed: with a loose objective, a growing queue would pass every short trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from twofold.bench.metrics.distribution import Floats, Interval, deviations, wilson
from twofold.bench.metrics.goodput import Objectives, measures, misses
from twofold.bench.metrics.requests import MeasurementRule, RequestFigures, figures_of
from twofold.bench.metrics.summary import due_window
from twofold.bench.record import RunRecord, plain

MIN_GROWTH: Final = 0.02
"""Growth of latency in seconds per second: that of a queue served at a rate lower than the arrivals by this share."""

GROWING: Final = ("ttft", "e2e")
"""Measures that grow with a queue."""

FEWEST: Final = 10
"""Minimum number of values for a trend."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The goal of a search: at least the share ``attainment`` of requests meets ``objectives``."""

    objectives: Objectives
    attainment: float
    rule: MeasurementRule = field(default_factory=MeasurementRule)


@dataclass(frozen=True, slots=True)
class Trial:
    """A rate and the result of its rounds.

    runs             numbers of its runs, from 0 over the whole search
    independent      effective number of independent requests
    interval         of ``attainment``, at the confidence of one look
    answered_share   share of requests with complete responses within their round
    growth           ``ttft`` or ``e2e`` if it grows, and its growth in seconds per second
    passed           whether the rate was sustained, by the measured figures
    sure             whether that is certain at the required confidence
    why              the reason in words
    """

    rate: float
    seconds: float
    runs: tuple[int, ...]
    requests: int
    judged: int
    met: int
    attainment: float
    independent: float
    interval: Interval
    answered_share: float
    growth: tuple[str, float] | None
    passed: bool
    sure: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain(self)
        return document


@dataclass(frozen=True, slots=True)
class _Round:
    """Figures of one round.

    independent  effective number of independent requests
    trends       of TTFT and E2E, which grow with a queue
    """

    judged: int
    met: int
    independent: float
    requests: int
    answered: int
    trends: dict[str, Trend]


@dataclass(slots=True)
class Rounds:
    """The rounds of one rate."""

    rate: float
    aim: Aim
    confidence: float
    seconds: float = 0.0
    _rounds: list[_Round] = field(default_factory=list)
    _runs: list[int] = field(default_factory=list)

    def add(self, record: RunRecord, seconds: float, run: int) -> None:
        rule, objectives = self.aim.rule, self.aim.objectives
        samples = sorted(rule.measured(record), key=lambda sample: sample.ask.due_s)
        figures = figures_of(samples, record)
        verdicts = [missed == () for missed in (misses(each, objectives) for each in figures) if missed is not None]
        end = due_window(record, rule).until_s
        ended = [sample.ended_s for sample in samples if sample.outcome == "ok" and sample.ended_s is not None]
        times = [correlation_time(np.array(verdicts, np.float64))]  # the verdicts may all be equal
        for name, limit in objectives.limits():
            found = [measures(each)[name] for each in figures]
            times.append(correlation_time(np.array([min(value, 2 * limit) for value in found if value is not None])))
        trends = {name: trend(*_finite(figures, name)) for name in GROWING}
        known = {name: line for name, line in trends.items() if line is not None}
        independent, answered = len(verdicts) / max(times), sum(moment < end for moment in ended)
        self._rounds.append(_Round(len(verdicts), sum(verdicts), independent, len(samples), answered, known))
        self._runs.append(run)
        self.seconds += seconds

    def trial(self) -> Trial:
        """The result of the rounds so far."""
        judged, met = sum(each.judged for each in self._rounds), sum(each.met for each in self._rounds)
        independent = sum(each.independent for each in self._rounds)
        attainment, wanted = met / judged if judged else 0.0, self.aim.attainment
        interval = wilson(attainment * independent, independent, self.confidence)
        growth = self._growth()
        why = (
            f"{attainment:.1%} met the SLO (interval {interval.low:.1%} to {interval.high:.1%}); {wanted:.1%} required"
        )
        passed, sure = attainment >= wanted, interval.low >= wanted
        if interval.high < wanted or growth is not None:
            passed, sure = False, True
            if interval.high >= wanted and growth is not None:
                why = f"{growth[0].upper()} grows by {growth[1]:.3g} s per second; {why}"
        asked = sum(each.requests for each in self._rounds)
        answered = sum(each.answered for each in self._rounds)
        return Trial(
            rate=self.rate,
            seconds=self.seconds,
            runs=tuple(self._runs),
            requests=asked,
            judged=judged,
            met=met,
            attainment=attainment,
            independent=independent,
            interval=interval,
            answered_share=answered / asked if asked else 0.0,
            growth=growth,
            passed=passed,
            sure=sure,
            why=why,
        )

    def _growth(self) -> tuple[str, float] | None:
        """The first measure that certainly grows, and in each of several rounds, since one round may just end badly."""
        for name in GROWING if len(self._rounds) > 1 else ():
            lines = [each.trends[name] for each in self._rounds if name in each.trends]
            line = joined(lines)
            if line is not None and min(each.slope for each in lines) > MIN_GROWTH and line.rises(self.confidence):
                return name, line.slope
        return None


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through values over time.

    slope        growth per second
    error        its standard error
    independent  number of independent values
    """

    slope: float
    error: float
    independent: float

    def rises(self, confidence: float) -> bool:
        """Whether it rises, at the confidence of a two-sided test."""
        return self.slope > self.error * student(confidence, self.independent - 2)


def correlation_time(values: Floats) -> float:
    """How many consecutive values count as one independent value.

    Consecutive requests share a queue, so n of them count as n / τ with τ = 1 + 2·Σ ρ_k, summed while neighbouring
    pairs of autocorrelations are positive (Charles J. Geyer, "Practical Markov chain Monte Carlo", 1992: initial
    positive sequence).
    """
    n = len(values)
    centred = values - values.mean() if n else values
    power = float(centred @ centred)
    if n < 4 or power <= 1e-18 * n:
        return 1.0
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlations = np.fft.irfft(spectrum)[:n] / power
    pairs = correlations[0 : n - n % 2 : 2] + correlations[1:n:2]
    negative = np.flatnonzero(pairs <= 0)
    positive = pairs[: negative[0]] if len(negative) else pairs
    return float(min(n, max(1.0, 2.0 * positive.sum() - 1.0)))


def trend(times: Floats, values: Floats) -> Trend | None:
    """Least squares with dependent neighbours; None for fewer than ``FEWEST`` values."""
    if len(values) < FEWEST:
        return None
    centred = times - times.mean()
    spread = float(centred @ centred)
    if not spread:
        return None
    slope = float(centred @ values) / spread
    residuals = values - values.mean() - slope * centred
    independent = max(3.0, len(values) / correlation_time(residuals))
    variance = float(residuals @ residuals) / len(values) / (independent - 2)
    return Trend(slope, math.sqrt(variance * len(values) / spread), independent)


def joined(trends: list[Trend]) -> Trend | None:
    """The mean of several rounds' trends, weighted by their precision."""
    if not trends:
        return None
    weights = [1 / max(each.error, 1e-12) ** 2 for each in trends]
    slope = sum(weight * each.slope for weight, each in zip(weights, trends, strict=True)) / sum(weights)
    independent = sum(each.independent - 2 for each in trends) + 2
    return Trend(slope, math.sqrt(1 / sum(weights)), independent)


def student(confidence: float, freedom: float) -> float:
    """Two-sided quantile of Student's t with at least 1 degree of freedom.

    By the expansion of Abramowitz and Stegun, 26.7.5: about 20 % too small at 1 degree, 0.2 % at 5.
    """
    z = deviations(confidence)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def requests_to_be_sure(attainment: float, confidence: float) -> float:
    """Requests that, if all pass, prove that at least that share does; infinite for a share of 1."""
    return deviations(confidence) ** 2 * attainment / (1 - attainment) if attainment < 1 else float("inf")


def _finite(figures: Sequence[RequestFigures], name: str) -> tuple[Floats, Floats]:
    """Due times and finite values of a measure."""
    pairs = [(each.due_s, measures(each)[name]) for each in figures]
    known = np.array([pair for pair in pairs if pair[1] is not None and math.isfinite(pair[1])]).reshape(-1, 2)
    return known[:, 0], known[:, 1]
