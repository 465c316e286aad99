"""The seam between the loop and whatever computes a step."""

from __future__ import annotations

from typing import Protocol

from twofold.core.step import StepOutcome, StepPlan


class Executor(Protocol):
    """Computes steps: on this machine, on another, or only in a simulation."""

    def run(self, plan: StepPlan) -> StepOutcome:
        """One forward pass over the plan's rows, with sampling; one outcome for each entry, in the plan's order."""
        ...
