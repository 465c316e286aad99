"""A lever: something to turn that may make requests faster or cheaper, and what the cost model says it does here.

Turning a lever gives an ``Effect``, a changed scenario or prediction; or a ``LeverRefusal``: it is in use already, or
cannot help. Nothing is a canned number: what a lever gains is computed from the same scenario with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from twofold.core.errors import ParameterError
from twofold.planner.explain.scenario import ScenarioFigures, UniformScenario
from twofold.planner.explain.waterfall import PhaseName
from twofold.planner.predict.request import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a lever must assume, since no scenario says it.

    acceptance    probability that a drafted token is kept, each alone
    draft         seconds of drafting a token, as a share of a step's
    max_drafted  tokens a step
    keeps         share of the prompt that compression leaves
    shared        share of what is computed of a prompt that a prefix cache could have held
    busy          share of time that machines which only prefill are kept busy
    """

    acceptance: float = 0.7
    draft: float = 0.05
    max_drafted: int = 8
    keeps: float = 0.5
    shared: float = 0.5
    busy: float = 0.7

    def __post_init__(self) -> None:
        for name in ("acceptance", "keeps", "shared", "busy"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ParameterError(f"{name} must be between 0 and 1, not {value}.", param=name)
        if not 0 <= self.draft < 1:
            raise ParameterError(f"draft must be from 0 to below 1 of a step, not {self.draft}.", param="draft")


@dataclass(frozen=True)
class Effect:
    """What turning a lever gives. ``what`` says from what to what, ``why`` what the general words do not.

    prediction  of the changed scenario, where that does not predict itself
    devices     that then take part, where they are not the scenario's
    felt        how many times shorter it seems to who reads along, where the machine saves nothing
    """

    what: str
    scenario: UniformScenario
    why: str = ""
    prediction: Prediction | None = None
    devices: float | None = None
    felt: float | None = None

    @cached_property
    def foreseen(self) -> Prediction:
        return self.prediction or self.scenario.prediction

    def figures(self) -> ScenarioFigures:
        return self.scenario.figures(self.foreseen, self.devices)


@dataclass(frozen=True, slots=True)
class LeverRefusal:
    """Why a lever is not turned. ``without`` is what there would be if it were not in use."""

    status: Literal["in use", "cannot"]
    why: str
    without: Effect | None = None


Turn: TypeAlias = Callable[[UniformScenario, Prediction, Assumptions], Effect | LeverRefusal]


@dataclass(frozen=True, slots=True)
class Lever:
    """``helps``: the phases that it is meant for. ``costs``: what is paid for it, in quality, memory, time or money."""

    name: str
    helps: tuple[PhaseName, ...]
    costs: str
    turn: Turn
