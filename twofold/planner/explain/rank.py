"""Outcomes of all levers, each applied alone, ranked by gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from twofold.api.body import ReplyObject
from twofold.bench.draw.form import duration
from twofold.core.errors import ParameterError, did_you_mean, quoted
from twofold.planner.explain.lever import Assumptions, Effect, Lever, LeverRefusal
from twofold.planner.explain.levers import LEVERS
from twofold.planner.explain.measured import MeasuredGain, benchmark, measured_gain
from twofold.planner.explain.scenario import (
    GOALS,
    NAMES,
    Figures,
    Goal,
    Observed,
    PhaseName,
    UniformScenario,
    prefill_parts,
    queue_of,
)
from twofold.planner.predict.request import Prediction
from twofold.planner.predict.steps import PART_WORDS

Status = Literal["gains", "felt", "no gain", "in use", "cannot"]
"""felt: the machine does the same work, but a reader of the stream waits less."""
ORDER: Final[tuple[Status, ...]] = ("gains", "felt", "no gain", "in use", "cannot")
MIN_GAIN: Final = 1.01
"""Smaller factors count as no gain: predictions are not that accurate."""
NOTICEABLE: Final = 0.005
"""Share of the whole completion below which changes of a phase are not shown."""
REASONS: Final[Mapping[str, str]] = {
    "queue": "before its own steps",
    "stalls": "stalls by other requests",
    **{
        f"{phase} {part}": f"{words} in {phase}"
        for phase in ("prefill", "decode")
        for part, words in PART_WORDS.items()
    },
}


class LeverOutcome(ReplyObject):
    """The outcome of applying a lever alone.

    gains     factors by goal, above 1 is better; for a lever in use, its present gains
    saves_s   seconds of the whole completion by phase; negative if a phase gets longer
    measured  what it gained in the request that is explained; None if it was not in use
    benchmark what the engine's benchmarks measured of it, on a machine of their own; "" without any
    """

    lever: str
    status: Status
    helps: Sequence[PhaseName]
    what: str | None
    gains: Mapping[str, float]
    saves_s: Mapping[str, float]
    after: Figures | None
    why: str
    costs: str
    measured: MeasuredGain | None = None
    benchmark: str = ""

    def gain(self, goal: Goal) -> float:
        return self.gains.get(goal, 1.0)


class Turned(ReplyObject):
    """A lever that is turned, with ``what`` it changes; or ``why`` it cannot be turned here."""

    lever: str
    what: str
    why: str = ""


@dataclass(frozen=True)
class LeverStack:
    """A scenario with several levers turned, and its prediction.

    Levers that change the scenario count first, in the order given. Those that change only times, such as speculation,
    count afterwards, each from the times so far. A lever that does both, such as compression, is not combined with
    another one of its kind: its times are those of its own changed scenario.

    bare      the scenario without levers
    now       the prediction for ``scenario`` with all levers
    devices   number, if it is not the scenario's own
    turned    the levers, in the order given
    retimed   whether ``now`` is not the scenario's own prediction
    """

    bare: UniformScenario
    scenario: UniformScenario
    now: Prediction
    assumptions: Assumptions
    levers: tuple[Lever, ...] = ()
    devices: float | None = None
    turned: tuple[Turned, ...] = ()
    retimed: bool = False

    @classmethod
    def of(cls, scenario: UniformScenario, assumptions: Assumptions, levers: Sequence[Lever] = ()) -> LeverStack:
        """Raises what a prediction raises."""
        found: dict[str, Turned] = {}
        base, retiming = scenario, []
        for lever in levers:
            result = lever.apply(base, base.prediction, assumptions)
            if isinstance(result, LeverRefusal):
                found[lever.name] = Turned(lever.name, "", result.why)
            elif result.prediction is None:
                base, found[lever.name] = result.scenario, Turned(lever.name, result.what)
            else:
                retiming.append((result.scenario is base, lever))
        stack = cls(scenario, base, base.prediction, assumptions, tuple(levers))
        for _, lever in sorted(retiming, key=lambda each: each[0]):
            stack, found[lever.name] = stack._retimed_by(lever)
        return replace(stack, turned=tuple(found[lever.name] for lever in levers))

    def _retimed_by(self, lever: Lever) -> tuple[LeverStack, Turned]:
        result = lever.apply(self.scenario, self.now, self.assumptions)
        if isinstance(result, LeverRefusal):
            return self, Turned(lever.name, "", result.why)
        if self.retimed and result.scenario is not self.scenario:
            return self, Turned(lever.name, "", "Its times are not predicted together with those of the others.")
        more = replace(
            self, scenario=result.scenario, now=result.foreseen, devices=result.devices or self.devices, retimed=True
        )
        return more, Turned(lever.name, result.what)

    def figures(self) -> Figures:
        return self.scenario.figures(self.now, self.devices)

    def effect(self, lever: Lever) -> Effect | LeverRefusal:
        """The effect of one more lever."""
        result = lever.apply(self.scenario, self.now, self.assumptions)
        if isinstance(result, LeverRefusal) or not self.retimed:
            return result
        if result.scenario is self.scenario:
            return replace(result, prediction=result.prediction or self.now, devices=result.devices or self.devices)
        more = LeverStack.of(self.bare, self.assumptions, (*self.levers, lever))
        if (refusal := more.turned[-1].why) != "":
            return LeverRefusal("cannot", refusal)
        return replace(result, scenario=more.scenario, prediction=more.now, devices=more.devices)


def find_levers(names: Sequence[str]) -> tuple[Lever, ...]:
    """The levers of these names, each once. Raises ParameterError with the closest name."""
    known = {lever.name.lower(): lever for lever in LEVERS}
    for name in names:
        if name.lower() not in known:
            raise ParameterError(
                f"There is no lever {quoted(name)}.", param="levers", hint=did_you_mean(name.lower(), list(known))
            )
    return tuple({name.lower(): known[name.lower()] for name in names}.values())


def apply_all(stack: LeverStack, goal: Goal = "e2e", observed: Observed | None = None) -> tuple[LeverOutcome, ...]:
    """Outcomes of the levers that are not turned: those that gain for the goal first, by their gain; with their gains
    in ``observed``."""
    before = stack.figures()
    found = [_outcome(lever, stack, before, goal, observed) for lever in LEVERS if lever not in stack.levers]
    return tuple(sorted(found, key=lambda each: (ORDER.index(each.status), *_rank(each, goal))))


def _rank(outcome: LeverOutcome, goal: Goal) -> tuple[float, float]:
    """A sort key: by the goal's gain, or without one by the largest other gain."""
    gain = outcome.gain(goal)
    return (-gain if outcome.status == "gains" else 0.0, -max(outcome.gains.values(), default=0.0))


def _outcome(lever: Lever, stack: LeverStack, before: Figures, goal: Goal, observed: Observed | None) -> LeverOutcome:
    scenario, now = stack.scenario, stack.now
    effect = stack.effect(lever)
    saves: dict[str, float] = {}
    if isinstance(effect, LeverRefusal):
        status: Status = effect.status
        gains = {} if effect.without is None else _gains(effect.without.figures(), before)
        what, why, after = None, effect.why, None
    else:
        what, after = effect.what or None, effect.figures()
        gains = _gains(before, after)
        status = "gains" if gains[goal] >= MIN_GAIN else "felt" if effect.felt else "no gain"
        parts = (_parts(scenario, now), _parts(effect.scenario, effect.foreseen))
        reasons = (_reason(*parts, now.e2e, status == "gains"), effect.why)
        saves = _saves(*parts)
        why = " ".join(filter(None, reasons if status != "felt" else reasons[1:]))
    return LeverOutcome(
        lever=lever.name,
        status=status,
        helps=lever.helps,
        what=what,
        gains=gains,
        saves_s=saves,
        after=after,
        why=why,
        costs=lever.costs,
        measured=measured_gain(lever.name, scenario, observed),
        benchmark=benchmark(lever.name, stack.assumptions.text),
    )


def _gains(before: Figures, after: Figures) -> dict[str, float]:
    return {goal: after.gain(before, goal) for goal in GOALS}


def _parts(scenario: UniformScenario, found: Prediction) -> dict[str, float]:
    """Seconds of the whole completion by part; a phase's parts are scaled to its seconds."""
    first, rest = prefill_parts(scenario, found), found.decode.times(scenario.further)
    decode = scenario.further * (found.tpot - found.interference)
    parts = {"queue": queue_of(scenario, found), "stalls": scenario.further * found.interference}
    for phase, own, seconds in (("prefill", first, first.seconds), ("decode", rest, decode)):
        scale = seconds / own.seconds if own.seconds else 0.0
        for name in own._fields:
            parts[f"{phase} {name}"] = getattr(own, name) * scale
    return parts


def _saves(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {
        phase: sum(before[part] - after[part] for part in before if part.split(" ", maxsplit=1)[0] == phase)
        for phase in NAMES
    }


def _reason(before: Mapping[str, float], after: Mapping[str, float], whole: float, gains: bool) -> str:
    """The parts with the largest reduction and increase, if noticeable; without a gain also the largest part."""
    changes = list(_changes(before, after, NOTICEABLE * whole))
    if gains:
        return _sentence("; ".join(changes))
    largest = max(before, key=lambda part: before[part])
    return _sentence("; ".join([f"{before[largest] / whole:.0%} of the time is {REASONS[largest]}", *changes]))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _changes(before: Mapping[str, float], after: Mapping[str, float], noticeable: float) -> Iterator[str]:
    by_size = sorted(before, key=lambda part: after[part] - before[part])
    for part in (by_size[0], by_size[-1]):
        if abs(after[part] - before[part]) >= noticeable:
            yield f"{REASONS[part]}: {duration(before[part])} → {duration(after[part])}"
