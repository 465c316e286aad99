"""What a request cost by phase, counted from its record, and the least time that a machine allows for a phase.

With W bytes of weights and the counts of ``PhaseWork``:

    bytes of weights       share · W                 the request's part of steps that it ran in with others
    bytes of K and V       of the positions read, and of each row written
    FLOPs                  of rows, logit rows and attended positions, as ``StepCost`` has them
    floor                  the limit of those FLOPs, and of reading W once a step with the request's K and V

The limit is the longer of two times, because reading and computing can overlap and neither can be skipped:

    memory                 bytes that must be read / read bandwidth
    arithmetic             FLOPs / the peak of their arithmetic, summed

In layers with a window, read and attended are the record's counts for that window. The floor takes the whole weights,
for a step reads all of them whatever runs in it: nothing on this machine could have made these tokens, one after the
other, in less time. Completions of one request run in the same steps, so those are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from twofold.core.kv_layout import KVType
from twofold.core.model import ModelSpec
from twofold.core.record import PhaseWork
from twofold.planner.count.step import SequenceRows, StepCost
from twofold.planner.machines.machine import engine_setting, machine_of
from twofold.planner.predict.steps import Demand, StepPredictor, StepSize

if TYPE_CHECKING:
    from twofold.core.limits import MachineLimits


def local_steps(shape: ModelSpec, limits: MachineLimits, dtype: KVType = "bf16") -> StepPredictor:
    """Predicts steps of the engine on this machine, with keys and values in that type."""
    return StepPredictor.of(shape, machine_of(shape, limits), engine_setting(dtype))


@dataclass(frozen=True, slots=True)
class PhaseLimit:
    """The least seconds a phase can take on a machine, and what sets them."""

    seconds: float
    bound: Literal["memory", "arithmetic"]

    def share(self, measured_s: float) -> float | None:
        """How much of the limit was reached; None where nothing was measured."""
        return self.seconds / measured_s if measured_s > 0 and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Bytes moved and FLOPs made for a request in one phase."""

    flops: int
    weight_bytes: float
    kv_read_bytes: int
    kv_written_bytes: int

    @classmethod
    def of(cls, work: PhaseWork, cost: StepCost) -> PhaseCost:
        """Counted for a model whose steps cost so much."""
        attended, read = _seen(work, cost)
        return cls(
            cost.flops(work.rows, work.logit_rows, attended),
            work.share * cost.weight_bytes(work.rows / max(1, work.steps)),
            cost.kv_bytes(read),
            cost.kv_bytes(dict.fromkeys(cost.windows, work.rows)),
        )

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes


def prefill_limit(steps: StepPredictor, new: int, *, cached: int = 0, chunk: int = 512) -> PhaseLimit:
    """Limit of computing ``new`` prompt tokens after ``cached`` ones, in steps of ``chunk`` that each read the weights.

    Keys and values that are read again count nothing here: they are few beside the arithmetic on them.
    """
    return spans_limit(steps, [(1, SequenceRows(new, cached))], passes=-(-new // chunk))


def decode_limit(steps: StepPredictor, prompt: int, tokens: int) -> PhaseLimit:
    """Limit of the ``tokens`` − 1 steps after the first token of a completion of ``prompt`` tokens, one token each."""
    rows = [(1, SequenceRows(1, context)) for context in range(prompt, prompt + tokens - 1)]
    return spans_limit(steps, rows, passes=len(rows), kv_read=steps.cost.read_bytes(rows))


def spans_limit(
    steps: StepPredictor, spans: Sequence[tuple[int, SequenceRows]], *, passes: float = 1, kv_read: float = 0
) -> PhaseLimit:
    """Returns the limit of ``passes`` steps that compute the sequences (a number of each kind). Each step reads the
    weights; together they read ``kv_read`` bytes of keys and values."""
    return _limit(steps, passes, sum(count * span.new for count, span in spans), steps.demand(spans), kv_read)


def phase_floor(work: PhaseWork, steps: StepPredictor, completions: int = 1) -> PhaseLimit:
    """The least seconds for the work of a phase, as if nothing else had run; ``work`` sums that of ``completions``.

    Several completions took part in at least steps / completions steps, and in no fewer than their shares add up to.
    """
    attended, read = _seen(work, steps.cost)
    demand = steps.summed(StepSize(work.rows, work.logit_rows, 0, tuple(attended.values()), tuple(read.values())))
    return _limit(steps, max(work.steps / completions, work.share), work.rows, demand, steps.cost.kv_bytes(read))


def _limit(steps: StepPredictor, passes: float, rows: int, demand: Demand, kv_read: float) -> PhaseLimit:
    """Of the products in ``demand``, which is that of ``rows`` in all steps together."""
    weights = steps.cost.weight_bytes(rows / passes) if passes else 0.0
    memory = (passes * weights + kv_read) / steps.bandwidth
    arithmetic = demand.matrices + demand.attention
    return PhaseLimit(memory, "memory") if memory >= arithmetic else PhaseLimit(arithmetic, "arithmetic")


def _seen(work: PhaseWork, cost: StepCost) -> tuple[Mapping[int | None, int], Mapping[int | None, int]]:
    """Positions that rows attended to and that steps read, by window; a window without counts hid nothing."""
    found = {window: work if window is None else work.windowed.get(window, work) for window in cost.windows}
    return {w: seen.attended for w, seen in found.items()}, {w: seen.read for w, seen in found.items()}
