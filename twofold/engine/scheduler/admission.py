"""Who waits begins to run: it gets its blocks if they will last."""

from __future__ import annotations

from collections.abc import Collection

from twofold.engine.scheduler.blocks import SequenceBlocks
from twofold.engine.scheduler.look_ahead import LookAhead
from twofold.engine.scheduler.sequence import Sequence, SequenceState


class LookAheadAdmission:
    """The rule of ``LookAhead``, applied to sequences at the head of the line."""

    def __init__(self, blocks: SequenceBlocks, look_ahead: LookAhead) -> None:
        self._blocks = blocks
        self._look_ahead = look_ahead

    def start(self, sequence: Sequence, running: Collection[Sequence], now: float) -> bool:
        """Gives the sequence its blocks beside those that run; False, and nothing changed, if they would not last."""
        if running and self._look_ahead.is_hopeless(sequence):
            return False
        if not self._take_blocks(sequence, running, now):
            self._look_ahead.refuse(sequence)
            return False
        return True

    def _take_blocks(self, sequence: Sequence, running: Collection[Sequence], now: float) -> bool:
        """Looks ahead before, and after, when it is known what cached blocks it took."""
        swapped = sequence.state is SequenceState.SWAPPED
        if not self._look_ahead.lasts(sequence, running, self._blocks.shareable(sequence)):
            return False
        if not self._blocks.start(sequence, now):
            return False
        if swapped or self._look_ahead.lasts(sequence, running):
            return True
        self._blocks.preempt(sequence, now)
        return False
