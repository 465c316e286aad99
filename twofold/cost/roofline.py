"""How near a phase came to what the machine allows.

The limit of a phase is the larger of two times, because reading and computing can overlap and neither can be skipped:

    memory       bytes that must be read / read bandwidth
    arithmetic   multiply-adds of integer codes / their peak + those of floats / theirs

Share of the limit = that time / the measured time. Nothing can exceed 1 but for errors of measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.cost.machine import MachineLimits
from twofold.cost.model import ModelCost, MultiplyAdds

Bound = Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True)
class PhaseLimit:
    """The least seconds a phase can take on a machine, and what sets them."""

    seconds: float
    bound: Bound

    def share(self, measured_s: float) -> float | None:
        """How much of the limit was reached; None where nothing was measured."""
        return self.seconds / measured_s if measured_s > 0 and self.seconds > 0 else None


def prefill_limit(
    cost: ModelCost, machine: MachineLimits, new: int, *, cached: int = 0, chunk: int = 512
) -> PhaseLimit:
    """Limit of computing ``new`` prompt tokens after ``cached`` ones, in steps of ``chunk`` that each read the weights.

    Keys and values that are read again count nothing here: they are few beside the arithmetic on them.
    """
    steps = -(-new // chunk)
    return phase_limit(cost, machine, steps * cost.weight_bytes, cost.prefill_macs(new, cached))


def decode_limit(
    cost: ModelCost, machine: MachineLimits, prompt: int, tokens: int, *, value_bytes: int = 2
) -> PhaseLimit:
    """Limit of the ``tokens`` − 1 steps after the first token of an answer to ``prompt`` tokens, one token each."""
    contexts = range(prompt + 1, prompt + tokens)
    moved = len(contexts) * cost.weight_bytes + sum(cost.kv_bytes(context, value_bytes) for context in contexts)
    return phase_limit(cost, machine, moved, cost.step_macs(contexts))


def phase_limit(cost: ModelCost, machine: MachineLimits, moved: float, work: MultiplyAdds) -> PhaseLimit:
    """Limit of reading ``moved`` bytes and making these multiply-adds."""
    memory = moved / machine.read_speed(cost.weight_bytes)
    arithmetic = work.integer / machine.int8_macs_per_s + work.floating / machine.float_macs_per_s
    return PhaseLimit(memory, "memory") if memory >= arithmetic else PhaseLimit(arithmetic, "arithmetic")
