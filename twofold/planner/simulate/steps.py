"""How long a step takes, as far as a simulation asks: a function of what the step holds.

Any callable will do. ``PredictedSteps`` are those of ``cost.predict``, told in sums instead of sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from twofold.core.model import ModelSpec
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.known import constants_for
from twofold.planner.predict.steps import StepPredictor


class StepSize(NamedTuple):
    """What a step's time depends on. ``sequences`` have rows in it.

    ``attended`` and ``read`` are by window, in the order of the model's ``windows``: positions that rows see, and
    positions that sequences read, each once a step. ``prompts`` are the chunks of prompts: so many of each.
    """

    rows: int
    logit_rows: int
    sequences: int
    attended: tuple[int, ...]
    read: tuple[int, ...]
    prompts: tuple[tuple[int, SequenceRows], ...] = ()


StepSeconds: TypeAlias = Callable[[StepSize], float]


class PredictedSteps:
    """Seconds of a model's steps on ``how.tp`` machines that work together: ``StepPredictor.summed`` by the constants.

    ``windows`` are those of its layers, None for layers that see everything; ``first_s`` is what a request takes to
    get in.
    """

    def __init__(
        self, shape: ModelSpec, machine: Machine, constants: Constants | None = None, how: Setting = PLAIN
    ) -> None:
        self._steps, self._by = StepPredictor.of(shape, machine, how), constants or constants_for(machine, shape)
        self.windows = tuple(self._steps.cost.windows)
        self.first_s = float(self._by.t_first)

    def __call__(self, size: StepSize) -> float:
        """Seconds of a step."""
        return self._steps.summed(*size).seconds(self._by)
