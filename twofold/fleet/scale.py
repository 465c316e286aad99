"""Computes by simulation how many replicas of a model the requests of the last minutes need to meet an objective.

The simulator of ``twofold simulate`` runs the requests again, with the fleet's router, on replicas whose steps take as
long as the step-time model says that the engines have learned. The least number of replicas that meets the objective
is found by bisection: more replicas are taken never to be worse. What the simulation does not know:

- Which prompts share a prefix: records have sizes only. The cached tokens of all requests are taken to be the start of
  one text, so a replica has as many of them as the longest before, once it has computed them.
- Live token budgets, tiers' priorities and speculation: steps have a fixed number of prompt rows, as many as keep a
  step within the target of TPOT; requests run in order of arrival; each step gives one token.

Requests that miss the objective on an idle replica, too, do not count: no number of replicas helps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import msgspec

from twofold.bench.load.base import Shared
from twofold.core.errors import ParameterError
from twofold.core.step_basis import StepBasis
from twofold.core.units import count
from twofold.engine.kv.manager import GroupSize
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.joining import MAX_REPLICAS
from twofold.fleet.routing.router import RoundRobin, make_router
from twofold.observe.metrics.requests import NO_OBJECTIVE, Objective
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.fleet import simulate
from twofold.planner.simulate.jobs import IndependentJobs, SimulatedJob
from twofold.planner.simulate.setting import EngineSetting

MAX_REQUESTS: Final = 1000
"""Requests of a simulation; of more, the latest."""
RECENT_S: Final = 60.0
"""The objective must also be met for the requests of this last part, so that a rise of traffic counts soon."""
HEADROOM: Final = 1.25
"""A replica is given up only if the others meet the objective when requests arrive so many times as fast."""
QUIET_S: Final = 120.0
"""How long one replica fewer must do before one is given up."""
MIN_ROWS: Final = 16
COMMON: Final = 0
"""The key of the text that cached tokens are taken from."""
LENGTHS: Final = 3
"""Bits that are kept of a number of cached tokens: a simulated cache is faster with few different lengths."""


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """The least and most replicas, and the share of the requests that must meet their tier's objective."""

    minimum: int
    maximum: int
    attainment: float = 0.9

    def __post_init__(self) -> None:
        if not 1 <= self.minimum < self.maximum <= MAX_REPLICAS:
            message = f"autoscale must be MIN:MAX with 1 ≤ MIN < MAX ≤ {MAX_REPLICAS}."
            raise ParameterError(message, param="autoscale", hint="For example 1:4.")
        if not 0.5 <= self.attainment < 1:
            message = f"The attainment must be from 0.5 to below 1, not {self.attainment:g}."
            raise ParameterError(message, param="attainment", hint="For example 0.9 or 0.99.")

    @classmethod
    def parse(cls, text: str, attainment: float = 0.9) -> Self:
        """Parses MIN:MAX. Raises ParameterError."""
        low, _, high = text.partition(":")
        minimum, maximum = (int(each) if each.isdecimal() else 0 for each in (low, high))
        return cls(minimum, maximum, attainment)


class PastRequest(NamedTuple):
    """A request: when it arrived, in seconds on any clock, the tokens of its prompt, those of them that were cached,
    and the tokens of its completion."""

    arrival_s: float
    prompt: int
    cached: int
    output: int
    tier: str = "default"


class EngineLimits(msgspec.Struct, frozen=True):
    """An engine: sequences that run at most and rows of a step, blocks of its KV cache, the weights of its step-time
    model and their basis, and the target of TPOT of a live token budget; None: the budget is fixed."""

    slots: int
    rows: int
    block_size: int
    blocks: int
    weights: tuple[float, ...]
    basis: StepBasis
    tpot_target_s: float | None = None


class ScaleQuestion(msgspec.Struct, frozen=True):
    """How many replicas do these requests need? They ascend in time; ``present`` replicas are there."""

    requests: tuple[PastRequest, ...]
    engine: EngineLimits
    objectives: Mapping[str, Objective]
    attainment: float
    minimum: int
    maximum: int
    present: int
    router: str = "predicted"


class ScaleForecast(msgspec.Struct, frozen=True):
    """The answer.

    replicas    the least number that meets the objective; the most that there may be if none does
    attainment  the share of the requests that meet it, by number of replicas: of ``replicas``, one fewer and one more,
                and of those that were there, as far as they may be
    spare       whether one replica fewer than there are meets it even if requests arrive HEADROOM times as fast; never
                if so many are ``hopeless`` that the objective cannot be met: fewer replicas would delay them further
    requests    that were simulated; ``hopeless`` of them miss the objective on an idle replica
    cut         what it omits: "requests" (the oldest ones) or "simulations" (for lack of time); None: nothing.
                Then ``replicas`` is the least number that is known to suffice, or that may suffice
    seconds     of processor time that it took
    """

    replicas: int
    attainment: dict[int, float]
    spare: bool
    requests: int = 0
    hopeless: int = 0
    cut: str | None = None
    seconds: float = 0.0


def forecast(question: ScaleQuestion, expired: Callable[[], bool] = lambda: False) -> ScaleForecast:
    """Simulates until the answer is known, or ``expired`` returns True; it is asked for each request."""
    asked, minimum = question, question.minimum
    if not asked.requests:
        return ScaleForecast(minimum, {}, asked.present > minimum)
    trials = _Trials(asked, expired)
    low, high, step, spare = minimum, asked.maximum, 1, False
    probe = min(max(asked.present, low), high)
    cut = "requests" if len(asked.requests) > MAX_REQUESTS else None
    try:
        while low < high:  # by steps that double, until they overtake the bisection
            if trials.share(probe) >= asked.attainment:
                high = probe
                probe = max(high - step, (low + high) // 2)
            else:
                low = min(probe + 1, high)
                probe = min(low + step - 1, (low + high) // 2)
            step *= 2
        for near in (low - 1, low, low + 1, asked.present):
            if minimum <= near <= asked.maximum:
                trials.share(near)
        if low < asked.present and not trials.lost:
            spare = trials.share(asked.present - 1, HEADROOM) >= asked.attainment
    except _ExpiredError:
        cut = "simulations"
        low = high if (high, 1.0) in trials.shares else low
    shares = {replicas: share for (replicas, speed), share in sorted(trials.shares.items()) if speed == 1.0}
    return ScaleForecast(low, shares, spare, len(trials.requests), sum(trials.hopeless), cut)


class _ExpiredError(Exception):
    """The time is over."""


class _Trials:
    """Simulations of the same requests. ``shares``: by number of replicas, and how many times as fast they arrive."""

    def __init__(self, question: ScaleQuestion, expired: Callable[[], bool]) -> None:
        self.requests = question.requests[-MAX_REQUESTS:]
        self.shares: dict[tuple[int, float], float] = {}
        self._question, self._expired = question, expired
        self._limits = [question.objectives.get(each.tier, NO_OBJECTIVE).limits for each in self.requests]
        engine = question.engine
        self._step_time = StepTimeModel.of_weights(engine.basis, engine.weights)
        rows = max(engine.slots, _rows(engine, self._step_time))
        groups = (GroupSize(None, engine.blocks),)
        self._setting = EngineSetting(groups, sequences=engine.slots, rows=rows, block_size=engine.block_size)
        self.hopeless = [not self._meets(number, *self._alone(each)) for number, each in enumerate(self.requests)]

    @property
    def lost(self) -> bool:
        """Whether too many requests are hopeless."""
        return sum(self.hopeless) > (1 - self._question.attainment) * len(self.requests)

    def share(self, replicas: int, speed: float = 1.0) -> float:
        """The share of the requests that meet their objective, of all or of the recent ones, whichever is less."""
        found = self.shares.get((replicas, speed))
        if found is None:
            first, last = self.requests[0].arrival_s, self.requests[-1].arrival_s
            due = [(each.arrival_s - first) / speed for each in self.requests]
            met = self._run((self._job(number, due_s) for number, due_s in enumerate(due)), replicas)
            judged = [n for n, limits in enumerate(self._limits) if limits and not self.hopeless[n]]
            recent = [n for n in judged if self.requests[n].arrival_s >= last - RECENT_S]
            found = min(sum(met[n] for n in part) / len(part) if part else 1.0 for part in (judged, recent))
            self.shares[replicas, speed] = found
        return found

    def _job(self, number: int, due_s: float) -> SimulatedJob:
        each = self.requests[number]
        cached = min(each.cached, each.prompt - 1)
        cached -= cached % (1 << max(0, cached.bit_length() - LENGTHS))
        pieces = (Shared(COMMON, cached),) if cached > 0 else ()
        return SimulatedJob(number, due_s, each.prompt, max(1, each.output), pieces, number)

    def _run(self, jobs: Iterable[SimulatedJob], replicas: int) -> list[bool]:
        """Whether each request meets its objective on so many replicas."""
        engines = [FastReplica(self._setting, self._seconds, step_time=self._step_time) for _ in range(replicas)]
        router = make_router(self._question.router if replicas > 1 else RoundRobin.name)
        columns = simulate(IndependentJobs(self._while_time(jobs)), engines, router).jobs
        met = [False] * len(self.requests)
        for number, due_s, first_s, last_s in zip(
            columns.index, columns.due_s, columns.first_s, columns.last_s, strict=True
        ):
            met[number] = self._meets(number, first_s - due_s, last_s - first_s)
        return met

    def _meets(self, number: int, ttft_s: float, decode_s: float) -> bool:
        """Whether a request meets its objective with these seconds to its first token, and from there to the last."""
        tpot_s = decode_s / max(1, self.requests[number].output - 1)
        took = {"ttft": ttft_s, "tpot": tpot_s, "e2e": ttft_s + decode_s}
        return all(took[measure] <= limit for measure, limit in self._limits[number].items())

    def _alone(self, each: PastRequest) -> tuple[float, float]:
        """The seconds of a request on an idle replica that has its cached tokens: to the first token, and from there
        to the last."""
        first_s, seconds, rows = 0.0, self._step_time.predict, self._setting.rows
        for start in range(min(each.cached, each.prompt - 1), each.prompt, rows):
            first_s += seconds(StepShape().plus(start, min(rows, each.prompt - start), 1)) or 0.0
        ends = (StepShape().plus(position, 1, 1) for position in (each.prompt, each.prompt + max(1, each.output) - 2))
        return first_s, (each.output - 1) * sum(seconds(end) or 0.0 for end in ends) / 2 if each.output > 1 else 0.0

    def _while_time(self, jobs: Iterable[SimulatedJob]) -> Iterator[SimulatedJob]:
        for job in jobs:
            if self._expired():
                raise _ExpiredError
            yield job

    def _seconds(self, size: StepSize) -> float:
        seconds = self._step_time.predict(StepShape(size.rows, size.logit_rows, size.attended[0], size.read[0]))
        assert seconds is not None, "a model of weights predicts"
        return seconds


def _rows(engine: EngineLimits, step_time: StepTimeModel) -> int:
    """The rows of a step; of a live budget as many as a step within its target has."""
    low, high = min(MIN_ROWS, engine.rows), engine.rows + 1
    while engine.tpot_target_s is not None and high - low > 1:
        middle = (low + high) // 2
        fits = (step_time.predict(StepShape().plus(0, middle, 1)) or 0.0) <= engine.tpot_target_s
        low, high = (middle, high) if fits else (low, middle)
    return engine.rows if engine.tpot_target_s is None else low


class ScaleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet shall do.

    wanted     replicas, from ``minimum`` to ``maximum``, where ``present`` were
    reason     in words
    forecast   what it was decided from; None if nothing could be simulated
    measured   the share of the ended requests of these minutes that met their objective; None without any
    at         when, in seconds since 1970
    problem    why the replicas could not be changed; None if they could
    """

    wanted: int
    present: int
    minimum: int
    maximum: int
    reason: str
    forecast: ScaleForecast | None
    measured: float | None
    at: float
    problem: str | None = None


@dataclass(slots=True)
class ScaleRule:
    """When to follow a forecast: up at once; down by one, when one fewer was enough for ``quiet_s`` seconds."""

    quiet_s: float = QUIET_S
    _since: float | None = None

    def decide(self, asked: ScaleQuestion, found: ScaleForecast, now: float) -> tuple[int, str]:
        """The wanted number of replicas and the reason, at this time of any clock in seconds."""
        present, least = asked.present, found.replicas
        why = _in_words(asked, found)
        if least > present or not found.spare:
            self._since = None
            if least < present:
                why += f"; kept, because {_kept(asked, found)}"
            return max(least, present), why
        if self._since is None:
            self._since = now
        if (quiet_s := now - self._since) < self.quiet_s:
            return present, f"{why}; one is given up in {self.quiet_s - quiet_s:.0f} s if that stays so"
        self._since = None
        return present - 1, why


def _kept(asked: ScaleQuestion, found: ScaleForecast) -> str:
    """Why no replica is given up."""
    if found.cut == "simulations":
        return "it is not known what fewer would do"
    if found.hopeless > (1 - asked.attainment) * found.requests:
        return "fewer would delay those further"
    return f"{asked.present - 1} would not at {HEADROOM:g} times the rate"


def _in_words(asked: ScaleQuestion, found: ScaleForecast) -> str:
    """A forecast in words."""
    if not found.requests:
        return "no request in the last minutes"
    least, share = found.replicas, found.attainment.get(found.replicas)
    near = {n: each for n, each in found.attainment.items() if abs(n - least) <= 1 or n == asked.present}
    shares = ", ".join(f"{n}: {each:.0%}" for n, each in near.items())
    verb = "may meet" if share is None else "can meet" if share >= asked.attainment else "cannot meet"
    text = f"{count(least, 'replica')} {verb} the objective for {asked.attainment:.0%} of {found.requests} requests"
    text += f" ({shares})" if shares else ""
    if found.hopeless:
        text += f"; {found.hopeless} miss it on an idle replica, too"
    return text if found.cut is None else f"{text}; some {found.cut} were omitted"
