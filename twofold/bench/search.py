"""Sweeps of rates, and searches for the highest rate that a server sustains: goodput by its second definition.

A rate is sustained if the required share of requests meets every objective and latency does not grow. Both conditions
are needed: with a loose objective, a growing queue would pass every short trial.

The rate is doubled or halved until one rate passes and one fails. Then the rates between both are bisected
geometrically until the two are close. A trial is examined after each round, and ends when its verdict is certain or its
time is over. Each round is twice as long as the previous one, since queues fill slowly. Each look at a trial may err,
so each has a part of the allowed error (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from twofold.bench.metrics.distribution import Floats, Interval, deviations, wilson
from twofold.bench.metrics.goodput import Objectives, measures, misses
from twofold.bench.metrics.requests import MeasurementRule, RequestFigures, request_figures
from twofold.bench.metrics.summary import Summary, due_window
from twofold.bench.record import RunRecord, plain
from twofold.core.errors import ParameterError, describe_name

MIN_GROWTH: Final = 0.02
"""Tolerated growth of latency in seconds per second: of a queue whose service rate is this share below its arrivals."""

GROWING: Final = ("ttft", "e2e")
"""Measures that grow with a queue."""

MIN_VALUES: Final = 10
"""Minimum number of values for a trend."""

SURE_ENOUGH: Final = 20
"""Number of independent requests that must all pass, while no rate has failed yet, to try a higher rate at once."""

MIN_REQUESTS: Final = 3
"""Minimum number of requests in the time of a trial; it limits the lowest rate."""

MAX_RATES: Final = 100
"""Maximum number of rates of a sweep."""

_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"
_RANGE: Final = re.compile(rf"{_NUMBER}\.\.{_NUMBER}([x+]){_NUMBER}")
_HINT: Final = "Write 1,2,4; or 1..16x2, where each rate is twice the previous one; or 2..10+2, where each is 2 more."

LoadRunner: TypeAlias = Callable[[float, float, int], RunRecord]
"""Sends an open-loop load at a rate for some seconds, with a seed that differs between runs."""


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
    independent      number of independent requests to which the judged ones are equivalent
    interval         of ``attainment``, at the confidence of one look
    answered_share   share of requests with complete responses within their round
    growth           ``ttft`` or ``e2e`` if it grows, and its growth in seconds per second
    passed           whether the rate was sustained, by the measured figures
    sure             whether ``passed`` is certain at the required confidence
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


@dataclass(slots=True)
class Rounds:
    """The rounds of one rate so far. ``_trends`` has the trends of ``GROWING`` measures of each round, if known."""

    rate: float
    aim: Aim
    confidence: float
    seconds: float = 0.0
    _runs: list[int] = field(default_factory=list)
    _trends: list[dict[str, Trend]] = field(default_factory=list)
    _requests: int = 0
    _completed: int = 0
    _judged: int = 0
    _met: int = 0
    _independent: float = 0.0

    def add(self, record: RunRecord, seconds: float, run: int) -> None:
        """Adds the round with the number ``run``, whose load lasted ``seconds``."""
        rule, objectives = self.aim.rule, self.aim.objectives
        samples = sorted(rule.measured(record), key=lambda sample: sample.ask.due_s)
        figures = request_figures(record, samples)
        verdicts = [missed == () for missed in (misses(each, objectives) for each in figures) if missed is not None]
        end = due_window(record, rule).until_s
        ended = [sample.ended_s for sample in samples if sample.outcome == "ok" and sample.ended_s is not None]
        times = [correlation_time(np.array(verdicts, np.float64))]  # the verdicts may all be equal
        for name, limit in objectives.limits():
            found = [measures(each)[name] for each in figures]
            times.append(correlation_time(np.array([min(value, 2 * limit) for value in found if value is not None])))
        trends = {name: trend(*_finite(figures, name)) for name in GROWING}
        self._trends.append({name: line for name, line in trends.items() if line is not None})
        self._runs.append(run)
        self.seconds += seconds
        self._requests += len(samples)
        self._completed += sum(moment < end for moment in ended)
        self._judged += len(verdicts)
        self._met += sum(verdicts)
        self._independent += len(verdicts) / max(times)

    def trial(self) -> Trial:
        """The result of the rounds so far."""
        attainment, wanted = self._met / self._judged if self._judged else 0.0, self.aim.attainment
        interval = wilson(attainment * self._independent, self._independent, self.confidence)
        growth = self._growth()
        why = (
            f"{attainment:.1%} met the SLO (interval {interval.low:.1%} to {interval.high:.1%}); {wanted:.1%} required"
        )
        passed, sure = attainment >= wanted, interval.low >= wanted
        if interval.high < wanted or growth is not None:
            passed, sure = False, True
            if interval.high >= wanted and growth is not None:
                why = f"{growth[0].upper()} grows by {growth[1]:.3g} s per second; {why}"
        return Trial(
            rate=self.rate,
            seconds=self.seconds,
            runs=tuple(self._runs),
            requests=self._requests,
            judged=self._judged,
            met=self._met,
            attainment=attainment,
            independent=self._independent,
            interval=interval,
            answered_share=self._completed / self._requests if self._requests else 0.0,
            growth=growth,
            passed=passed,
            sure=sure,
            why=why,
        )

    def _growth(self) -> tuple[str, float] | None:
        """The first measure that certainly grows, in all of at least two rounds: one round may end badly by chance."""
        for name in GROWING if len(self._trends) > 1 else ():
            lines = [trends[name] for trends in self._trends if name in trends]
            line = combined(lines)
            if line is not None and min(each.slope for each in lines) > MIN_GROWTH and line.rises(self.confidence):
                return name, line.slope
        return None


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line fitted to values over time.

    slope        growth per second
    error        standard error of the slope
    independent  number of independent values
    """

    slope: float
    error: float
    independent: float

    def rises(self, confidence: float) -> bool:
        """Whether the slope is above 0, at the confidence of a two-sided test."""
        return self.slope > self.error * student(confidence, self.independent - 2)


def correlation_time(values: Floats) -> float:
    """The number of consecutive values that count as one independent value.

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
    negative = np.flatnonzero(pairs <= 1e-12)  # rounding may leave a sum of 0 positive
    positive = pairs[: negative[0]] if len(negative) else pairs
    return float(min(n, max(1.0, 2.0 * positive.sum() - 1.0)))


def trend(times: Floats, values: Floats) -> Trend | None:
    """The line by least squares, with dependent neighbours; None for fewer than ``MIN_VALUES`` values or one time."""
    if len(values) < MIN_VALUES:
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


def combined(trends: list[Trend]) -> Trend | None:
    """The mean of trends, weighted by their precision; None without any."""
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
    """Number of requests that, if all pass, prove that at least that share passes; infinite for a share of 1."""
    return deviations(confidence) ** 2 * attainment / (1 - attainment) if attainment < 1 else float("inf")


def _finite(figures: Sequence[RequestFigures], name: str) -> tuple[Floats, Floats]:
    """Due times and finite values of a measure."""
    pairs = [(each.due_s, measures(each)[name]) for each in figures]
    known = np.array([pair for pair in pairs if pair[1] is not None and math.isfinite(pair[1])]).reshape(-1, 2)
    return known[:, 0], known[:, 1]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search.

    start            first rate in requests a second
    lowest, highest  limits of rates
    seconds          minimum length of a round; longer if the rate is too low for a certain verdict after one
    max_seconds      maximum of all rounds of a trial
    confidence       of verdicts
    precision        maximum distance of the lowest failing rate from the highest passing rate, relative to the latter
    max_trials       maximum number of trials
    """

    start: float = 1.0
    lowest: float = 0.001
    highest: float = 100_000.0
    seconds: float = 30.0
    max_seconds: float = 210.0
    confidence: float = 0.95
    precision: float = 0.05
    max_trials: int = 24

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest < math.inf:
            raise ParameterError("The first rate must be between the lowest and the highest.", param="start")
        if not 0 < self.seconds <= self.max_seconds < math.inf:
            raise ParameterError("A round must not be longer than a trial.", param="seconds")
        if not 0.5 <= self.confidence < 1:
            raise ParameterError(
                f"confidence must be from 0.5 up to less than 1, not {self.confidence}.", param="confidence"
            )
        if not self.precision > 0 or self.max_trials < 1:
            raise ParameterError("precision and the number of trials must be above 0.", param="precision")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    rate         highest passing rate below the lowest failing rate; None if no rate passed
    sure_pass    highest rate that certainly passed; None if no rate did
    sure_fail    lowest rate that certainly failed; None if no rate did
    bounded      whether a higher rate failed
    settled      whether ``precision`` was reached
    interrupted  whether the search was stopped; then the last trial is missing
    """

    aim: Aim
    options: SearchOptions
    rate: float | None
    sure_pass: float | None
    sure_fail: float | None
    bounded: bool
    settled: bool
    interrupted: bool
    trials: tuple[Trial, ...]

    def words(self) -> str:
        """The result as a sentence."""
        wanted = f"{self.aim.attainment:.0%} of requests meet {self.aim.objectives}"
        if self.rate is None:
            lowest = f", not even at {min(trial.rate for trial in self.trials):.4g} requests/s" if self.trials else ""
            return f"No rate found at which {wanted}{lowest}."
        end = "" if self.bounded else " Higher rates were not tried."
        passed = [] if self.sure_pass is None else [f"{self.sure_pass:.4g} requests/s passes"]
        failed = [] if self.sure_fail is None else [f"{self.sure_fail:.4g} requests/s fails"]
        bounds = f"At {self.options.confidence:.0%} confidence, {' and '.join(passed + failed)}."
        if not passed + failed:
            bounds = "No confidence bounds: every trial was inconclusive. Use longer trials (--duration)."
        return f"At {self.rate:.4g} requests/s, {wanted}. {bounds}{end}"

    def to_json(self) -> dict[str, Any]:
        """Plain data: the fields, and ``words``."""
        document: dict[str, Any] = {**plain(self), "words": self.words()}
        return document


def find_rate(
    run: LoadRunner, aim: Aim, options: SearchOptions | None = None, on_trial: Callable[[Trial], None] | None = None
) -> SearchResult:
    """Finds the highest rate that reaches ``aim``. Calls ``on_trial`` after each trial. An interrupted run ends it.

    Raises the errors of ``run``.
    """
    return _Search(run, aim, options or SearchOptions(), on_trial).result()


@dataclass(slots=True)
class _Search:
    """Invariant: rates up to ``_low`` count as passing, rates from ``_high`` on as failing, and _low < _high."""

    _run: LoadRunner
    _aim: Aim
    _options: SearchOptions
    _on_trial: Callable[[Trial], None] | None
    _trials: list[Trial] = field(default_factory=list)
    _runs: int = 0
    _low: float | None = None
    _high: float | None = None

    def result(self) -> SearchResult:
        while (rate := self._next()) is not None:
            trial = self._try(rate)
            if trial is None:
                return self._found(interrupted=True)
            self._trials.append(trial)
            if trial.passed:
                self._low = rate
            else:
                self._high = rate
            if self._on_trial is not None:
                self._on_trial(trial)
        return self._found(interrupted=False)

    def _next(self) -> float | None:
        """The next rate to try; None if the search is over."""
        options, low, high = self._options, self._low, self._high
        if len(self._trials) >= options.max_trials or self._settled():
            return None
        if low is None and high is None:
            return options.start
        if high is None:
            return None if low == options.highest else min(options.highest, 2 * (low or 0.0))
        if low is None:
            floor = max(options.lowest, MIN_REQUESTS / options.max_seconds)
            return None if high <= floor else max(floor, high / 2)
        return math.sqrt(low * high)

    def _settled(self) -> bool:
        low, high = self._low, self._high
        return low is not None and high is not None and high <= low * (1 + self._options.precision)

    def _try(self, rate: float) -> Trial | None:
        """Runs rounds until the verdict is certain or the time is over; None if interrupted."""
        options = self._options
        looks = max(1, int(math.log2(options.max_seconds / options.seconds + 1)))
        confidence = 1 - (1 - options.confidence) / looks  # of each look at a trial
        rounds = Rounds(rate, self._aim, confidence)
        # with this length, one round is enough if all requests pass
        wanted = 1.3 * requests_to_be_sure(self._aim.attainment, confidence) / rate
        wanted += self._aim.rule.warmup_s + self._aim.rule.cooldown_s
        length = min(max(wanted, options.seconds), options.max_seconds)
        while True:
            record = self._run(rate, length, self._runs)
            if record.interrupted:
                return None
            rounds.add(record, length, self._runs)
            self._runs += 1
            trial, left = rounds.trial(), options.max_seconds - rounds.seconds
            unanimous = self._high is None and trial.met == trial.judged and trial.independent >= SURE_ENOUGH
            if trial.sure or left < length or unanimous:
                return trial
            length = min(left, 2 * length)

    def _found(self, *, interrupted: bool) -> SearchResult:
        sure = [trial for trial in self._trials if trial.sure]
        return SearchResult(
            aim=self._aim,
            options=self._options,
            rate=self._low,
            sure_pass=max((trial.rate for trial in sure if trial.passed), default=None),
            sure_fail=min((trial.rate for trial in sure if not trial.passed), default=None),
            bounded=self._high is not None,
            settled=self._settled(),
            interrupted=interrupted,
            trials=tuple(self._trials),
        )


def curve_point(rate: float, summary: Summary) -> dict[str, Any]:
    """A point of the curve of a sweep, as plain data."""
    achieved, goodput = summary.rates.achieved, summary.goodput
    latencies = {name: getattr(summary.latency, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
    return {
        "rate": rate,
        "requests_per_s": achieved.requests_per_s if achieved else None,
        "output_tokens_per_s": achieved.output_tokens_per_s if achieved else None,
        **{name: plain({"p50": found.p50, "p99": found.p99}) for name, found in latencies.items()},
        "attainment": goodput.attainment if goodput else None,
    }


def parse_rates(text: str) -> tuple[float, ...]:
    """Parses ``1,2,4``, ``1..16x2`` or ``2..10+2`` into ascending, distinct rates. Raises ParameterError."""
    rates = sorted({rate for part in text.split(",") for rate in _part(part.strip())})
    if len(rates) > MAX_RATES:
        raise ParameterError(f"{len(rates)} rates are more than {MAX_RATES}.", param="rates", hint="Take larger steps.")
    return tuple(rates)


def _part(text: str) -> list[float]:
    match = _RANGE.fullmatch(text)
    if match is not None:
        return _range(float(match[1]), float(match[2]), match[3], float(match[4]))
    if re.fullmatch(_NUMBER, text) and float(text) > 0:
        return [float(text)]
    raise ParameterError(f"{describe_name(text)} is not a rate.", param="rates", hint=_HINT)


def _range(first: float, last: float, sign: str, step: float) -> list[float]:
    """Rates from ``first`` to ``last``, which is included if a step reaches it."""
    if not 0 < first <= last or (step <= 1 if sign == "x" else step <= 0):
        raise ParameterError("A range of rates must ascend from above 0.", param="rates", hint=_HINT)
    rates: list[float] = []
    while len(rates) <= MAX_RATES:
        at = first * step ** len(rates) if sign == "x" else first + step * len(rates)
        if at > last * (1 + 1e-9):
            break
        rates.append(round(at, 9))
    return rates
