"""A lever: a change that may make requests faster or cheaper, with its effect here by the cost model.

Applying a lever gives an ``Effect``, a changed scenario or prediction; or a ``LeverRefusal``: it is in use already, or
cannot help. Every gain is computed from the same scenario with and without the lever."""

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
    """Assumptions of levers that no scenario has.

    acceptance    probability that a draft token is accepted, each alone
    draft         seconds of drafting a token, as a share of a step's
    max_drafted   draft tokens of a step
    keeps         share of the prompt that compression leaves
    shared        share of the fresh prompt tokens that a prefix cache could hold
    busy          utilization of machines that only prefill
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
    """The result of a lever: ``what`` changes, and ``why`` beside the general reason.

    prediction  of the changed scenario, if it is not the scenario's own
    devices     of the changed scenario, if they are not the scenario's own
    felt        factor by which a reader of the stream waits less, where the machine does the same work
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
    """Why a lever is not applied. ``without``: the scenario without a lever that is in use."""

    status: Literal["in use", "cannot"]
    why: str
    without: Effect | None = None


Turn: TypeAlias = Callable[[UniformScenario, Prediction, Assumptions], Effect | LeverRefusal]


@dataclass(frozen=True, slots=True)
class Lever:
    """``helps``: phases that it improves. ``costs``: its price in quality, memory, time or money."""

    name: str
    helps: tuple[PhaseName, ...]
    costs: str
    turn: Turn
