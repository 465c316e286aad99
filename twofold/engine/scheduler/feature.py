"""What takes part in scheduling: one interface for everything that follows sequences or has a say in steps.

The scheduler decides who runs and takes blocks for it. Records, waits, limits, lanes, learned costs, loads from the KV
store and speculation are features: it calls each of them in the same order, and knows of none what it does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from twofold.core.record import WaitReason
from twofold.core.step import BlockMove, SequenceStep, StepOutcome, StepPlan
from twofold.engine.kv.store import StoreResult
from twofold.engine.scheduler.budget import StepBuilder
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.step_time import StepWork


class Wait(NamedTuple):
    """What a sequence waits for: its turn in the queue, or the end of ``reason``. ``cause``: it was preempted for
    "blocks", or for another "tenant". ``tokens`` of its prompt are being loaded."""

    reason: WaitReason | None = None
    cause: str = ""
    tokens: int = 0


TURN: Final = Wait()
NEW: Final = Wait(cause="new")
FORKED: Final = Wait(cause="forked")
"""The first wait of a sequence, which is new or continues another one."""


class Gain(NamedTuple):
    """What a ``sequence`` has of a ``step``: the ``tokens`` that became known, or none yet. ``first``: it has its first
    token or candidates. ``work`` is that of all sequences in the step, which ended at ``now``."""

    sequence: Sequence
    step: SequenceStep
    tokens: tuple[int, ...]
    work: StepWork
    now: float
    first: bool


class StepFeature:
    """Does nothing. A feature overrides what it needs."""

    # -- a step, in this order ----------------------------------------------------------------------------------------

    def propose(self, decoding: Collection[Sequence], rows: int) -> dict[int, array[int]]:
        """Draft tokens by sequence, for a step of ``decoding`` sequences with at most ``rows`` more rows."""
        return {}

    def extend(self, step: StepBuilder) -> float:
        """Adds its own work to the sequences of a step, and returns the predicted seconds of that. Called once all
        generating rows are in the step, and again when the step is whole."""
        return 0.0

    def planned(self, step: StepBuilder, moves: Iterable[BlockMove], now: float) -> None:
        """A step was planned. It may be empty."""

    def overlap(self, running: Iterable[Sequence]) -> None:
        """A step is being computed: there is time for other work."""

    def computed(self, plan: StepPlan, outcome: StepOutcome, work: StepWork) -> None:
        """A step was computed. Next its sequences advance."""

    # -- a sequence ---------------------------------------------------------------------------------------------------

    def waits(self, sequence: Sequence, wait: Wait, now: float) -> None:
        """A sequence without a slot begins to wait, or to wait for something else."""

    def hold(self, head: Sequence, lasts: Callable[[], bool], now: float, *, alone: bool) -> Wait | None:
        """Lets the head of the queue wait for something else than its turn; None if it may start. ``lasts`` says
        whether there will be blocks for it; ``alone``: nothing runs."""
        return None

    def take_stored(self, results: Iterable[StoreResult], now: float) -> list[Sequence]:
        """Takes results of the KV store; the sequences that it no longer holds."""
        return []

    def started(self, sequence: Sequence, now: float, *, first: bool) -> None:
        """A sequence runs and has its blocks, for the ``first`` time or again."""

    def advanced(self, gain: Gain) -> None:
        """A sequence has computed its rows of a step."""

    def left(self, sequence: Sequence, now: float) -> None:
        """A sequence has left its slot or the queue: it was preempted or paused, or it has ended, with a finish reason.
        It has no blocks, or they are on the host."""
