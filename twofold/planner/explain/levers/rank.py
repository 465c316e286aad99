"""All levers, turned one at a time, the one that gains most first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from twofold.bench.draw.form import duration
from twofold.planner.explain.levers.base import Assumptions, Lever, LeverRefusal
from twofold.planner.explain.levers.model import model_levers, storage_levers
from twofold.planner.explain.levers.serving import prompt_levers, serving_levers
from twofold.planner.explain.scenario import GOALS, Goal, ScenarioFigures, UniformScenario
from twofold.planner.explain.waterfall import PhaseName, prefill_parts, queue_of
from twofold.planner.predict.request import Prediction

Status = Literal["gains", "felt", "no gain", "in use", "cannot"]
"""felt: the machine does the same, but who reads along waits less."""
ORDER: Final[tuple[Status, ...]] = ("gains", "felt", "no gain", "in use", "cannot")
MIN_GAIN: Final = 1.01
"""What gains less is told as no gain: predictions are not that good."""
NOTICEABLE: Final = 0.005
"""Of the whole answer: changes of a phase below it are not told."""
PART_WORDS: Final[Mapping[str, str]] = {
    "queue": "queueing",
    "stalls": "prefill of other requests in the same steps",
    "prefill weights": "reading weights in prefill",
    "prefill arithmetic": "arithmetic in prefill",
    "prefill kv": "reading keys and values in prefill",
    "prefill links": "communication in prefill",
    "prefill overhead": "overhead in prefill",
    "decode weights": "reading weights in decode",
    "decode arithmetic": "arithmetic in decode",
    "decode kv": "reading keys and values in decode",
    "decode links": "communication in decode",
    "decode overhead": "overhead in decode",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a lever does here. ``gains`` by goal are factors, above 1 better; of one in use, what it gives already.

    saves     seconds of the whole answer by phase; negative where a phase gets longer
    """

    lever: str
    helps: tuple[PhaseName, ...]
    status: Status
    what: str
    why: str
    costs: str
    gains: Mapping[Goal, float] = field(default_factory=dict)
    saves: Mapping[PhaseName, float] = field(default_factory=dict)
    after: ScenarioFigures | None = None

    def gain(self, goal: Goal) -> float:
        return self.gains.get(goal, 1.0)


def all_levers() -> tuple[Lever, ...]:
    return (*serving_levers(), *storage_levers(), *prompt_levers(), *model_levers())


def turn_all(
    scenario: UniformScenario, goal: Goal = "e2e", assumptions: Assumptions | None = None
) -> tuple[Outcome, ...]:
    """Each lever's outcome: those that gain for the goal by how much, then those that do not."""
    now = scenario.prediction
    before = scenario.figures(now)
    found = [_turned(lever, scenario, now, before, goal, assumptions or Assumptions()) for lever in all_levers()]
    return tuple(sorted(found, key=lambda each: (ORDER.index(each.status), *_rank(each, goal))))


def _rank(outcome: Outcome, goal: Goal) -> tuple[float, float]:
    """By the goal; where that is nothing, by whatever else gains most."""
    gain = outcome.gain(goal)
    return (-gain if outcome.status == "gains" else 0.0, -max(outcome.gains.values(), default=0.0))


def _turned(
    lever: Lever, scenario: UniformScenario, now: Prediction, before: ScenarioFigures, goal: Goal, given: Assumptions
) -> Outcome:
    result = lever.turn(scenario, now, given)
    if isinstance(result, LeverRefusal):
        gains = {} if result.without is None else _gains(result.without.figures(), before)
        return Outcome(lever.name, lever.helps, result.status, "", result.why, lever.costs, gains)
    after = result.figures()
    gains = _gains(before, after)
    status: Status = "gains" if gains[goal] >= MIN_GAIN else "felt" if result.felt else "no gain"
    parts = (_parts(scenario, now), _parts(result.scenario, result.foreseen))
    reasons = (_reason(*parts, now.e2e, status == "gains"), result.why)
    saves = _saves(*parts)
    why = " ".join(filter(None, reasons if status != "felt" else reasons[1:]))
    return Outcome(lever.name, lever.helps, status, result.what, why, lever.costs, gains, saves, after)


def _gains(before: ScenarioFigures, after: ScenarioFigures) -> dict[Goal, float]:
    return {goal: after.gain(before, goal) for goal in GOALS}


def _parts(scenario: UniformScenario, found: Prediction) -> dict[str, float]:
    """Seconds of the whole answer by what they go to. What came to a phase beside its parts is its overhead."""
    first, rest = prefill_parts(scenario, found), found.decode.times(scenario.further)
    decode = scenario.further * (found.tpot - found.interference)
    parts = {"queue": queue_of(scenario, found), "stalls": scenario.further * found.interference}
    for phase, own, seconds in (("prefill", first, first.seconds), ("decode", rest, decode)):
        scale = seconds / own.seconds if own.seconds else 0.0
        for name in own._fields:
            parts[f"{phase} {name}"] = getattr(own, name) * scale
    return parts


def _saves(before: Mapping[str, float], after: Mapping[str, float]) -> dict[PhaseName, float]:
    phases: tuple[PhaseName, ...] = ("queue", "prefill", "decode", "stalls")
    return {
        phase: sum(before[part] - after[part] for part in before if part.split(" ", maxsplit=1)[0] == phase)
        for phase in phases
    }


def _reason(before: Mapping[str, float], after: Mapping[str, float], whole: float, gains: bool) -> str:
    """The part of the answer that changes most for the better; and the one for the worse where that is not little."""
    told = list(_changes(before, after, NOTICEABLE * whole))
    if gains:
        return _sentence("; ".join(told))
    largest = max(before, key=lambda part: before[part])
    return _sentence("; ".join([f"{before[largest] / whole:.0%} of the time is {PART_WORDS[largest]}", *told]))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _changes(before: Mapping[str, float], after: Mapping[str, float], least: float) -> Iterator[str]:
    by_size = sorted(before, key=lambda part: after[part] - before[part])
    for part in (by_size[0], by_size[-1]):
        if abs(after[part] - before[part]) >= least:
            yield f"{PART_WORDS[part]}: {duration(before[part])} → {duration(after[part])}"
