"""Replicas in the eyes of routers, made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.basis import BASIS, PRIOR
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel


def model(speed: float = 1.0) -> StepTimeModel:
    return StepTimeModel.of_weights(BASIS, [weight / speed for weight in PRIOR])


@dataclass
class Standing:
    """A replica with fixed work."""

    ready: bool = True
    open: int = 0
    decode: StepShape = field(default_factory=StepShape)
    pending: StepShape = field(default_factory=StepShape)
    step_time: StepTimeModel = field(default_factory=model)
    rows: int = 256

    def ahead(self) -> WorkAhead:
        return WorkAhead(self.decode, self.pending, self.rows, self.step_time)
