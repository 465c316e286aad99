"""Scenarios that several tests explain."""

from __future__ import annotations

from typing import Final

from twofold.cost.count.setting import Setting
from twofold.cost.explain.explanation import scenario_of
from twofold.cost.explain.levers.base import Assumptions
from twofold.cost.explain.levers.rank import Outcome, turn_all
from twofold.cost.explain.scenario import Goal, UniformScenario
from twofold.cost.hardware.known import find_machine
from twofold.cost.predict.constants import Constants
from twofold.cost.predict.request import Case
from twofold.cost.shapes.known import find_shape

PLAIN: Final = Case(prompt=2000, output=300, concurrency=16)
ALONE: Final = Case(prompt=2000, output=300)


def scene(
    model: str = "llama-3-8b",
    machine: str = "h100",
    case: Case = PLAIN,
    *,
    tp: int = 1,
    by: Constants | None = None,
) -> UniformScenario:
    return scenario_of(find_shape(model), find_machine(machine), case, Setting(tp=tp), by)


def lever(name: str, scenario: UniformScenario, goal: Goal = "e2e", given: Assumptions | None = None) -> Outcome:
    """One lever's outcome."""
    found = [each for each in turn_all(scenario, goal, given) if each.lever == name]
    assert len(found) == 1, f"{len(found)} levers are called {name}"
    return found[0]
