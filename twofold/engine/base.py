"""The seam between the loop and whatever computes a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twofold.core.step import StepOutcome, StepPlan


class Executor(Protocol):
    """Computes steps: on this machine, on another, or only in a simulation."""

    def run(self, plan: StepPlan, meanwhile: Callable[[], None] | None = None) -> StepOutcome:
        """Block moves, then one forward pass over the plan's rows, with sampling; outcomes in the plan's order.

        ``meanwhile`` is called once while the rows are computed, or before; what it raises leaves afterwards.
        """
        ...
