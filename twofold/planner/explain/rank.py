"""Outcomes of all levers, each applied alone, ranked by gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from twofold.bench.draw.form import duration
from twofold.planner.explain.lever import Assumptions, Lever, LeverRefusal
from twofold.planner.explain.levers import LEVERS
from twofold.planner.explain.measured import MeasuredGain, measured_gain
from twofold.planner.explain.scenario import (
    GOALS,
    NAMES,
    Goal,
    Observed,
    PhaseName,
    ScenarioFigures,
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of applying a lever.

    gains     factors by goal, above 1 is better; for a lever in use, its present gains
    saves_s   seconds of the whole completion by phase; negative if a phase gets longer
    measured  what it gained in the request that is explained; None if it was not in use
    """

    lever: str
    status: Status
    helps: tuple[PhaseName, ...]
    what: str
    gains: Mapping[Goal, float]
    saves_s: Mapping[PhaseName, float]
    after: ScenarioFigures | None
    why: str
    costs: str
    measured: MeasuredGain | None = None

    def gain(self, goal: Goal) -> float:
        return self.gains.get(goal, 1.0)


def apply_all(
    scenario: UniformScenario,
    goal: Goal = "e2e",
    assumptions: Assumptions | None = None,
    seen: Observed | None = None,
) -> tuple[Outcome, ...]:
    """Outcomes of all levers: those that gain for the goal first, by their gain; with their gains in ``seen``."""
    now = scenario.prediction
    before = scenario.figures(now)
    found = [
        replace(
            _outcome(lever, scenario, now, before, goal, assumptions or Assumptions()),
            measured=measured_gain(lever.name, scenario, seen),
        )
        for lever in LEVERS
    ]
    return tuple(sorted(found, key=lambda each: (ORDER.index(each.status), *_rank(each, goal))))


def _rank(outcome: Outcome, goal: Goal) -> tuple[float, float]:
    """A sort key: by the goal's gain, or without one by the largest other gain."""
    gain = outcome.gain(goal)
    return (-gain if outcome.status == "gains" else 0.0, -max(outcome.gains.values(), default=0.0))


def _outcome(
    lever: Lever, scenario: UniformScenario, now: Prediction, before: ScenarioFigures, goal: Goal, given: Assumptions
) -> Outcome:
    result = lever.apply(scenario, now, given)
    if isinstance(result, LeverRefusal):
        gains = {} if result.without is None else _gains(result.without.figures(), before)
        return Outcome(lever.name, result.status, lever.helps, "", gains, {}, None, result.why, lever.costs)
    after = result.figures()
    gains = _gains(before, after)
    status: Status = "gains" if gains[goal] >= MIN_GAIN else "felt" if result.felt else "no gain"
    parts = (_parts(scenario, now), _parts(result.scenario, result.foreseen))
    reasons = (_reason(*parts, now.e2e, status == "gains"), result.why)
    saves = _saves(*parts)
    why = " ".join(filter(None, reasons if status != "felt" else reasons[1:]))
    return Outcome(lever.name, status, lever.helps, result.what, gains, saves, after, why, lever.costs)


def _gains(before: ScenarioFigures, after: ScenarioFigures) -> dict[Goal, float]:
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


def _saves(before: Mapping[str, float], after: Mapping[str, float]) -> dict[PhaseName, float]:
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
