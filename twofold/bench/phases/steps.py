"""Where the time of a step goes. Its parts follow each other without a gap:

host     the engine's own: requests come in and leave, the step is planned, the one before is committed
batch    blocks are moved, the rows become arrays
model    the forward pass; ``beside`` is what Python did meanwhile: the last step's tokens became text
draw     tokens are drawn from the logits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from twofold.core.report import StepReport


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by part, or of several in the mean. Rows are counted by phase."""

    decode_rows: float
    prefill_rows: float
    host_s: float
    batch_s: float
    model_s: float
    draw_s: float
    beside_s: float

    @classmethod
    def of(cls, report: StepReport) -> Self:
        """A step as the engine reports it."""
        return cls(
            report.decode_rows,
            report.prefill_rows,
            report.host_s,
            report.moves_s + report.seconds - report.forward_s - report.sample_s,
            report.forward_s,
            report.sample_s,
            report.overlap_s,
        )

    @classmethod
    def mean(cls, steps: Sequence[StepTime]) -> Self:
        """Of at least one step."""
        return cls(**{name: sum(getattr(step, name) for step in steps) / len(steps) for name in STEP_FIELDS})

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own; ``beside`` is inside the model's."""
        return self.host_s + self.batch_s + self.model_s + self.draw_s

    @property
    def outside(self) -> float:
        """The share of its time that is not the model's."""
        return 1 - self.model_s / self.seconds if self.seconds > 0 else 0.0


STEP_FIELDS: Final = ("decode_rows", "prefill_rows", "host_s", "batch_s", "model_s", "draw_s", "beside_s")
