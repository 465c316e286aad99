"""Where the time of a step goes. Its parts follow each other without a gap:

host     the engine's own: requests come in and leave, the step is planned, the one before is committed
batch    blocks are moved, the rows become arrays
model    the forward pass; ``beside`` is what Python did meanwhile: the last step's tokens became text
draw     tokens are drawn from the logits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final, Self

from twofold.core.model import ModelSpec
from twofold.core.report import StepReport
from twofold.engine.config import EngineConfig
from twofold.engine.cpu import build_cpu
from twofold.engine.load import BuiltForward
from twofold.engine.wrapped import WrappedForward
from twofold.formats.gguf import GGUFFile
from twofold.models.bind import ModelWeights
from twofold.ops.base import Batch, Forward
from twofold.sampling.base import F32


@dataclass(frozen=True, slots=True)
class Pass:
    """When a forward pass began and ended, in seconds on ``perf_counter``, and what the caller did meanwhile."""

    began: float
    ended: float
    beside_s: float


class WatchedForward(WrappedForward):
    """A model that notes when it was run. All else is the model's own."""

    def __init__(self, forward: Forward) -> None:
        super().__init__(forward)
        self._last: Pass | None = None

    def take(self) -> Pass | None:
        """The last pass, once."""
        last, self._last = self._last, None
        return last

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> F32:
        """As ``Forward.run``."""
        beside_s = 0.0

        def timed() -> None:
            nonlocal beside_s
            began = perf_counter()
            if meanwhile is not None:
                meanwhile()
            beside_s = perf_counter() - began

        began = perf_counter()
        logits = self._forward.run(batch, None if meanwhile is None else timed)
        self._last = Pass(began, perf_counter(), beside_s)
        return logits


def watched_build(file: GGUFFile, spec: ModelSpec, weights: ModelWeights, config: EngineConfig) -> BuiltForward:
    """The CPU kernels, with a ``WatchedForward`` before them."""
    built = build_cpu(file, spec, weights, config)
    return replace(built, forward=WatchedForward(built.forward))


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
    def of(cls, report: StepReport, ran: Pass | None) -> Self:
        """A step by what the engine says of it and when its model ran; None where it only moved blocks."""
        batch_s, model_s, draw_s, beside_s = report.moves_s + report.seconds, 0.0, 0.0, 0.0
        if ran is not None:
            batch_s, model_s = max(0.0, ran.began - report.started), ran.ended - ran.began
            draw_s, beside_s = max(0.0, report.ended - ran.ended), ran.beside_s
        return cls(report.decode_rows, report.prefill_rows, report.host_s, batch_s, model_s, draw_s, beside_s)

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
