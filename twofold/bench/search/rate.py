"""Sweeps of rates, and searches for the highest rate that a server sustains: goodput by its second definition.

The rate is doubled or halved until it is between one that passes and one that fails, and then bisected by ratio until
the two are close. Each trial is examined after every round; it ends when its verdict is certain, or when its time is
over. Each round is twice as long as the one before, since queues fill slowly. Several looks at a trial are several
chances of error, so each has its part of the allowed error (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.metrics.summary import Summary, summarise
from twofold.bench.record import RunRecord, plain
from twofold.bench.search.trial import Aim, Rounds, Trial, requests_to_be_sure
from twofold.core.errors import ParameterError, describe_name

CALM: Final = 20
"""Independent requests that must all pass to go on to a higher rate before any rate failed."""

MIN_REQUESTS: Final = 3
"""Minimum requests of a trial: lower rates may have none within its time."""

MAX_RATES: Final = 100
"""Maximum number of rates of a sweep."""

_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"
_RANGE: Final = re.compile(rf"{_NUMBER}\.\.{_NUMBER}([x+]){_NUMBER}")
_HINT: Final = "write 1,2,4 or 1..16x2, each twice the one before, or 2..10+2, each two more"

LoadRunner: TypeAlias = Callable[[float, float, int], RunRecord]
"""Sends an open-loop load at a rate for some seconds, with a seed that differs between runs."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search.

    start            first rate in requests a second
    lowest, highest  limits of rates
    seconds          minimum length of a round; longer if the rate is too low for a certain verdict after one
    max_seconds      maximum of all rounds of a trial
    confidence       of verdicts
    precision        maximum distance of the lowest failing rate from the highest passing rate, as a share
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
            raise ParameterError("the first rate must lie between the lowest and the highest", param="start")
        if not 0 < self.seconds <= self.max_seconds < math.inf:
            raise ParameterError("a round must not be longer than a trial", param="seconds")
        if not 0.5 <= self.confidence < 1:
            raise ParameterError(
                f"confidence must be from 0.5 up to less than 1, not {self.confidence}", param="confidence"
            )
        if not self.precision > 0 or self.max_trials < 1:
            raise ParameterError("precision and the number of trials must be more than 0", param="precision")

    def look_confidence(self) -> float:
        """The confidence of each look at a trial."""
        looks = max(1, int(math.log2(self.max_seconds / self.seconds + 1)))
        return 1 - (1 - self.confidence) / looks


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    rate         highest passing rate below the lowest failing one; None without any
    sure_pass    highest rate that certainly passed; None without any
    sure_fail    lowest rate that certainly failed; None without any
    bounded      whether a higher rate failed
    settled      whether ``precision`` was reached
    interrupted  whether it was stopped; the last trial is then missing
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
            least = f", not even at {min(trial.rate for trial in self.trials):.4g} requests/s" if self.trials else ""
            return f"No rate found at which {wanted}{least}."
        end = "" if self.bounded else " Higher rates were not tried."
        passed = [] if self.sure_pass is None else [f"{self.sure_pass:.4g} requests/s passes"]
        failed = [] if self.sure_fail is None else [f"{self.sure_fail:.4g} requests/s fails"]
        bounds = f"At {self.options.confidence:.0%} confidence, {' and '.join(passed + failed)}."
        if not passed + failed:
            bounds = "No confidence bounds: every trial was inconclusive; longer trials (--duration) narrow it."
        return f"At {self.rate:.4g} requests/s, {wanted}. {bounds}{end}"

    def to_json(self) -> dict[str, Any]:
        """Plain data under the names of the fields, and the sentence."""
        document: dict[str, Any] = {**plain(self), "words": self.words()}
        return document


def find_rate(
    run: LoadRunner, aim: Aim, options: SearchOptions | None = None, tell: Callable[[Trial], None] | None = None
) -> SearchResult:
    """The highest rate that reaches ``aim``; calls ``tell`` after every trial. An interrupted run ends the search.

    Raises the errors of ``run``.
    """
    return _Search(run, aim, options or SearchOptions(), tell).result()


@dataclass(slots=True)
class _Search:
    """Invariant: rates up to ``_low`` count as passing, rates from ``_high`` on as failing, and _low < _high."""

    _run: LoadRunner
    _aim: Aim
    _options: SearchOptions
    _tell: Callable[[Trial], None] | None
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
            if self._tell is not None:
                self._tell(trial)
        return self._found(interrupted=False)

    def _next(self) -> float | None:
        """The next rate to try; None at the end."""
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
        confidence = options.look_confidence()
        rounds = Rounds(rate, self._aim, confidence)
        # with this length one round is enough if all requests pass
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
            calm = self._high is None and trial.met == trial.judged and trial.independent >= CALM
            if trial.sure or left < length or calm:
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


def sweep(
    run: LoadRunner,
    rates: Sequence[float],
    seconds: float,
    rule: MeasurementRule | None = None,
    objectives: Objectives | None = None,
) -> dict[str, Any]:
    """Runs each rate for ``seconds`` until one is interrupted; returns the points of a curve as plain data."""
    points: list[dict[str, Any]] = []
    interrupted = False
    for seed, rate in enumerate(rates):
        record = run(rate, seconds, seed)
        points.append(_point(rate, summarise(record, rule, objectives)))
        interrupted = record.interrupted
        if interrupted:
            break
    return {"interrupted": interrupted, "points": points}


def _point(rate: float, summary: Summary) -> dict[str, Any]:
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
        raise ParameterError(f"{len(rates)} rates are more than {MAX_RATES}", param="rates", hint="take larger steps")
    return tuple(rates)


def _part(text: str) -> list[float]:
    match = _RANGE.fullmatch(text)
    if match is not None:
        return _range(float(match[1]), float(match[2]), match[3], float(match[4]))
    if re.fullmatch(_NUMBER, text) and float(text) > 0:
        return [float(text)]
    raise ParameterError(f"{describe_name(text)} is not a rate", param="rates", hint=_HINT)


def _range(first: float, last: float, how: str, step: float) -> list[float]:
    """From ``first`` to ``last``, included if a step reaches it."""
    if not 0 < first <= last or (step <= 1 if how == "x" else step <= 0):
        raise ParameterError("a range of rates must go up from more than 0", param="rates", hint=_HINT)
    rates: list[float] = []
    while len(rates) <= MAX_RATES:
        at = first * step ** len(rates) if how == "x" else first + step * len(rates)
        if at > last * (1 + 1e-9):
            break
        rates.append(round(at, 9))
    return rates
