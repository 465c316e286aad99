"""Scenarios that several tests explain."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from twofold.planner.count.setting import Setting
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.rank import LeverOutcome, LeverStack, apply_all
from twofold.planner.explain.report import Explanation, scenario_of
from twofold.planner.explain.scenario import Goal, UniformScenario
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.request import Case
from twofold.planner.shapes.known import find_shape

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


def data(explanation: Explanation) -> Any:
    """The document, as its JSON has it."""
    return msgspec.to_builtins(explanation.document)


def lever(name: str, scenario: UniformScenario, goal: Goal = "e2e", given: Assumptions | None = None) -> LeverOutcome:
    """One lever's outcome."""
    found = [each for each in apply_all(LeverStack.of(scenario, given or Assumptions()), goal) if each.lever == name]
    assert len(found) == 1, f"{len(found)} levers are called {name}"
    return found[0]
