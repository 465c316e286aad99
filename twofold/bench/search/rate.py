"""The highest rate that a server sustains: goodput by its second definition.

The rate is doubled, or halved, until it lies between one that passes and one that fails, and then halved by ratio until
the two are close. Each trial is looked at after every round: it ends when it is sure, or when its time is over and the
figures as they are decide. Each round is twice as long as the one before, for a queue takes its time to fill. A trial
that is looked at several times has as many chances to be wrong, so each look has its part of the error that is allowed
(Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twofold.bench.record import RunRecord, plain
from twofold.bench.search.trial import Aim, Rounds, Trial, requests_to_be_sure
from twofold.core.errors import ParameterError

CALM: Final = 20
"""Requests that know nothing of each other and all pass: on the way up to the first rate that fails, that will do."""

MIN_REQUESTS: Final = 3
"""Of a trial: at lower rates its time may pass without a request, and it would show nothing."""


class LoadRunner(Protocol):
    """Sends an open-loop load and waits for its answers."""

    def __call__(self, rate: float, seconds: float, seed: int) -> RunRecord:
        """``seed`` is another one in each run, so that no two have the same arrivals."""
        ...


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search.

    start          the first rate, requests a second
    lowest, highest  rates beyond which it does not go
    seconds        of a round, at least: it is longer where the rate is too low for a sure verdict after one
    max_seconds   of all rounds of one trial
    confidence     that a verdict which is called sure is right
    precision      the lowest rate that fails is at most that much above the highest that passes, as a share
    max_trials    after which it ends as it is
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
        """Of each look at a trial."""
        looks = max(1, int(math.log2(self.max_seconds / self.seconds + 1)))
        return 1 - (1 - self.confidence) / looks


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was found.

    rate         the highest that passed below the lowest that failed; None where none did
    sure_pass    the highest that passed beyond doubt; None where none did
    sure_fail    the lowest that failed beyond doubt; None where none did
    bounded      False where it passed at the highest rate that was allowed
    settled      whether ``precision`` was reached
    interrupted  whether someone stopped it; the last trial is then not in it
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
        return f"At {self.rate:.4g} requests/s, {wanted}. {self._bounds()}{end}"

    def _bounds(self) -> str:
        """Between which rates the true one lies at the confidence that was asked for."""
        at = f"At {self.options.confidence:.0%} confidence"
        passed = None if self.sure_pass is None else f"{self.sure_pass:.4g} requests/s passes"
        failed = None if self.sure_fail is None else f"{self.sure_fail:.4g} requests/s fails"
        if passed is None and failed is None:
            return "No confidence bounds: every trial was inconclusive; longer trials (--duration) narrow it."
        return f"{at}, {' and '.join(filter(None, (passed, failed)))}."

    def to_json(self) -> dict[str, Any]:
        """Plain data under the names of the fields, and the sentence."""
        document: dict[str, Any] = {**plain(self), "words": self.words()}
        return document


def find_rate(
    run: LoadRunner, aim: Aim, options: SearchOptions | None = None, tell: Callable[[Trial], None] | None = None
) -> SearchResult:
    """The highest rate that reaches ``aim``. ``tell`` hears of every trial when it is over.

    Raises what ``run`` does. A record that was interrupted ends the search.
    """
    return _Search(run, aim, options or SearchOptions(), tell).result()


def _calm(trial: Trial) -> bool:
    """Whether a higher rate tells more than more of this one."""
    return trial.met == trial.judged and trial.independent >= CALM


class _Search:
    """Law: every rate up to ``_low`` counts as passing, every rate from ``_high`` on as failing, and _low < _high."""

    def __init__(self, run: LoadRunner, aim: Aim, options: SearchOptions, tell: Callable[[Trial], None] | None) -> None:
        self._run = run
        self._aim = aim
        self._options = options
        self._tell = tell
        self._trials: list[Trial] = []
        self._runs = 0
        self._low: float | None = None
        self._high: float | None = None

    def result(self) -> SearchResult:
        interrupted = False
        while (rate := self._next()) is not None:
            trial = self._try(rate)
            if trial is None:
                interrupted = True
                break
            self._note(trial)
        return self._found(interrupted)

    def _next(self) -> float | None:
        """The rate to try now; None where there is no need."""
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
        """Rounds until it is sure, or their time is over; None where someone stopped one."""
        options = self._options
        confidence = options.look_confidence()
        rounds = Rounds(rate, self._aim, confidence)
        length = self._round_seconds(rate, confidence)
        while True:
            record = self._run(rate, length, self._runs)
            if record.interrupted:
                return None
            rounds.add(record, length, self._runs)
            self._runs += 1
            trial, left = rounds.trial(), options.max_seconds - rounds.seconds
            if trial.sure or left < length or (self._high is None and _calm(trial)):
                return trial
            length = min(left, 2 * length)

    def _round_seconds(self, rate: float, confidence: float) -> float:
        """So long that one round is enough where all requests pass."""
        aim, options = self._aim, self._options
        requests = 1.3 * requests_to_be_sure(aim.attainment, confidence)
        wanted = aim.rule.warmup_s + aim.rule.cooldown_s + requests / rate
        return min(max(wanted, options.seconds), options.max_seconds)

    def _note(self, trial: Trial) -> None:
        self._trials.append(trial)
        if trial.passed:
            self._low = trial.rate
        else:
            self._high = trial.rate
        if self._tell is not None:
            self._tell(trial)

    def _found(self, interrupted: bool) -> SearchResult:
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
