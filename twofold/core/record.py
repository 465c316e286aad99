"""What happened to a sequence, in counts and seconds: what it did in each phase, and what it waited for.

The loop fills it; metrics, traces and explanations read it. Counts become bytes and FLOPs only where a model's sizes
are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Stall(Enum):
    """Why a sequence did not advance although it could have."""

    BLOCKS = "queued for blocks"
    TURN = "waiting behind others"
    PREFILL = "waiting behind others' prefill"
    PREEMPTED = "preempted"
    GRAMMAR = "compiling its grammar"


@dataclass(slots=True)
class PhaseWork:
    """Work of one phase. A row is a token computed.

    attended    positions that its rows attended to, summed over rows
    read        cached positions that its steps read, summed over steps
    steps       steps that it took part in
    share       its part of the weights that these steps read: Σ own rows / rows of the step
    seconds     of these steps; ``predicted_s`` is what the step-time model said before them
    """

    rows: int = 0
    attended: int = 0
    read: int = 0
    steps: int = 0
    share: float = 0.0
    seconds: float = 0.0
    predicted_s: float = 0.0


@dataclass(slots=True)
class SequenceRecord:
    """One sequence. ``cached`` prompt tokens came from the cache, ``fresh`` were computed; seconds by cause of stall.

    ``recomputed`` tokens had to be computed again after a preemption, ``swapped`` blocks went out and in again.
    """

    prefill: PhaseWork = field(default_factory=PhaseWork)
    decode: PhaseWork = field(default_factory=PhaseWork)
    stalls: dict[Stall, float] = field(default_factory=dict)
    preemptions: int = 0
    recomputed: int = 0
    swapped: int = 0
    cached: int = 0
    fresh: int = 0

    def stall(self, cause: Stall, seconds: float) -> None:
        """Adds to the seconds lost to ``cause``."""
        if seconds > 0:
            self.stalls[cause] = self.stalls.get(cause, 0.0) + seconds
