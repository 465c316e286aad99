"""What a lever is: a change that may make requests faster or cheaper.

Applying a lever returns an ``Effect``, a changed scenario or prediction; or a ``LeverRefusal``, if the lever is in use
already or cannot help. Every gain is computed from the same scenario with and without the lever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.planner.explain.scenario import Figures, PhaseName, UniformScenario
from twofold.planner.predict.request import Prediction
from twofold.planner.predict.speculation import TextClass

ENOUGH: Final = 0.97
"""Formats that leave more than this share of the bytes count as no smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions of levers that are not part of a scenario.

    text         class of the completions, which says how many draft tokens are right
    acceptance   probability that a draft token is accepted if those before it were; None: that of the class
    draft        seconds of drafting a token, as a share of a step; None: nothing for drafts from text, and that of its
                 steps for a draft model
    max_drafted  maximum draft tokens of a step
    keeps        share of the fresh prompt tokens that compression leaves
    scorer       model that scores prompts for compression; None: the smallest of the family
    shared       share of the fresh prompt tokens that a prefix cache or a store could hold
    busy         utilization of machines that only prefill
    """

    text: TextClass = "prose"
    acceptance: float | None = None
    draft: float | None = None
    max_drafted: int = 8
    keeps: float = 0.5
    scorer: ModelSpec | None = None
    shared: float = 0.5
    busy: float = 0.7

    def __post_init__(self) -> None:
        for name in ("acceptance", "keeps", "shared", "busy"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ParameterError(f"{name} must be between 0 and 1, not {value}.", param=name)
        if self.draft is not None and not 0 <= self.draft < 1:
            raise ParameterError(f"draft must be from 0 to below 1 of a step, not {self.draft}.", param="draft")


@dataclass(frozen=True)
class Effect:
    """The effect of a lever: ``what`` changes, and ``why``, in addition to the general reason.

    prediction  for the changed scenario, if it is not the scenario's own
    devices     number for the changed scenario, if it is not the scenario's own
    felt        whether a reader of the stream waits less, although the machine does the same work
    """

    what: str
    scenario: UniformScenario
    why: str = ""
    prediction: Prediction | None = None
    devices: float | None = None
    felt: bool = False

    @cached_property
    def foreseen(self) -> Prediction:
        return self.prediction or self.scenario.prediction

    def figures(self) -> Figures:
        return self.scenario.figures(self.foreseen, self.devices)


@dataclass(frozen=True, slots=True)
class LeverRefusal:
    """Why a lever is not applied. ``without``: the scenario without a lever that is in use."""

    status: Literal["in use", "cannot"]
    why: str
    without: Effect | None = None


ApplyLever: TypeAlias = Callable[[UniformScenario, Prediction, Assumptions], Effect | LeverRefusal]
"""Applies a lever to a scenario with this prediction."""


@dataclass(frozen=True, slots=True)
class Lever:
    """``helps``: phases that it improves. ``costs``: its price in quality, memory, time or money."""

    name: str
    helps: tuple[PhaseName, ...]
    costs: str
    apply: ApplyLever
