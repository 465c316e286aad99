"""One rate, tried: whether it can be sustained, and how sure that is.

A rate is sustainable when the wanted share of requests meets every objective, and nothing grows while it lasts. Both
are needed: with a loose objective, a queue that grows for ever passes every trial that is short enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from twofold.bench.metrics.distribution import Floats, Interval, deviations, wilson
from twofold.bench.metrics.goodput import Objectives, measures, misses
from twofold.bench.metrics.rates import due_window
from twofold.bench.metrics.requests import RequestFigures, figures_of
from twofold.bench.metrics.rule import MeasurementRule
from twofold.bench.record import RunRecord, plain
from twofold.bench.search.trend import Trend, correlation_time, joined, trend

MIN_GROWTH: Final = 0.02
"""Seconds a second. A line that is served at a rate lower by that share than the one it is asked at grows as fast."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a rate must reach: at least the share ``attainment`` of requests meets ``objectives``."""

    objectives: Objectives
    attainment: float
    rule: MeasurementRule = field(default_factory=MeasurementRule)


@dataclass(frozen=True, slots=True)
class Trial:
    """A rate and what came of its rounds.

    runs             which runs these were, counted from 0 over the whole search
    independent      requests that count, after what neighbours share
    interval         of ``attainment``, at the confidence of one look
    answered_share   of the requests of the rounds: complete answers within them
    growth           ``ttft`` or ``e2e`` where that grows, and by how many seconds a second
    passed           whether the rate was sustained, by the figures as they are
    sure             whether also beyond doubt at the confidence asked for
    why              in words
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
    """What a trial keeps of a run.

    independent  requests that count, after what neighbours share
    trends       of what takes longer where a queue grows
    """

    judged: int
    met: int
    independent: float
    requests: int
    answered: int
    trends: dict[str, Trend]


class Rounds:
    """The rounds of one rate, until they tell enough."""

    def __init__(self, rate: float, aim: Aim, confidence: float) -> None:
        self._rate = rate
        self._aim = aim
        self._confidence = confidence
        self._rounds: list[_Round] = []
        self._runs: list[int] = []
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds

    def add(self, record: RunRecord, seconds: float, run: int) -> None:
        self._rounds.append(_round(record, self._aim))
        self._runs.append(run)
        self._seconds += seconds

    def trial(self) -> Trial:
        """What the rounds tell so far."""
        judged, met = sum(each.judged for each in self._rounds), sum(each.met for each in self._rounds)
        independent = sum(each.independent for each in self._rounds)
        attainment = met / judged if judged else 0.0
        interval = wilson(attainment * independent, independent, self._confidence)
        growth = _growth(self._rounds, self._confidence)
        passed, sure, why = _verdict(attainment, interval, growth, self._aim.attainment)
        asked = sum(each.requests for each in self._rounds)
        answered = sum(each.answered for each in self._rounds)
        return Trial(
            rate=self._rate,
            seconds=self._seconds,
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


def requests_to_be_sure(attainment: float, confidence: float) -> float:
    """How many requests, if all of them pass, show that at least that share does; infinite for a share of 1."""
    return deviations(confidence) ** 2 * attainment / (1 - attainment) if attainment < 1 else float("inf")


def _verdict(
    attainment: float, interval: Interval, growth: tuple[str, float] | None, wanted: float
) -> tuple[bool, bool, str]:
    """Whether it passed, whether that is sure, and why."""
    seen = f"{attainment:.1%} met the SLO (interval {interval.low:.1%} to {interval.high:.1%}); {wanted:.1%} required"
    if interval.high < wanted:
        return False, True, seen
    if growth is not None:
        return False, True, f"{growth[0].upper()} grows by {growth[1]:.3g} s per second; {seen}"
    return attainment >= wanted, interval.low >= wanted, seen


def _round(record: RunRecord, aim: Aim) -> _Round:
    samples = sorted(aim.rule.measured(record), key=lambda sample: sample.ask.due_s)
    figures = figures_of(samples, record)
    verdicts = [missed == () for missed in (misses(each, aim.objectives) for each in figures) if missed is not None]
    judged = len(verdicts)
    end = due_window(record, aim.rule).until_s
    answered = sum(
        1 for sample in samples if sample.outcome == "ok" and sample.ended_s is not None and sample.ended_s < end
    )
    shared = _correlation(figures, np.array(verdicts, np.float64), aim.objectives)
    return _Round(judged, sum(verdicts), judged / shared, len(samples), answered, _trends(figures))


def _correlation(figures: Sequence[RequestFigures], verdicts: Floats, objectives: Objectives) -> float:
    """How many requests count for one: the most by any measure, for where all pass their verdicts say nothing of it."""
    times = [correlation_time(verdicts)]
    for name, limit in objectives.limits():
        found = [measures(each)[name] for each in figures]
        times.append(correlation_time(np.array([min(value, 2 * limit) for value in found if value is not None])))
    return max(times)


def _trends(figures: Sequence[RequestFigures]) -> dict[str, Trend]:
    """Of what takes longer where a queue grows."""
    found = {name: trend(*_finite(figures, name)) for name in ("ttft", "e2e")}
    return {name: line for name, line in found.items() if line is not None}


def _finite(figures: Sequence[RequestFigures], name: str) -> tuple[Floats, Floats]:
    """When requests were due, and what they have of a measure."""
    pairs = [(each.due_s, measures(each)[name]) for each in figures]
    known = np.array([pair for pair in pairs if pair[1] is not None and math.isfinite(pair[1])]).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def _growth(rounds: Sequence[_Round], confidence: float) -> tuple[str, float] | None:
    """The first measure that grows beyond doubt. In every one of several rounds: one alone may just have a bad end."""
    if len(rounds) < 2:
        return None
    for name in ("ttft", "e2e"):
        lines = [each.trends[name] for each in rounds if name in each.trends]
        line = joined(lines)
        if line is not None and min(each.slope for each in lines) > MIN_GROWTH and line.rises(confidence):
            return name, line.slope
    return None
