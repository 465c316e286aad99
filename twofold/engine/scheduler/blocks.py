"""The blocks of sequences: how they start with what is shared or cached, grow, are published, and go back.

The only place of the scheduler that changes what the block manager holds.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from operator import le

from twofold.core.record import HeldPin
from twofold.core.request import CachePin
from twofold.engine.kv.holding import Holding
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.reach import Reach
from twofold.engine.scheduler.sequence import Sequence, SequenceState


class SequenceBlocks:
    """Joins sequences and the block manager. A sequence has blocks exactly while it runs."""

    def __init__(self, manager: BlockManager, reaches: Row[Reach]) -> None:
        self._manager = manager
        self._reaches = reaches
        self._pins: dict[int, tuple[CachePin, ...]] = {}

    def shareable(self, sequence: Sequence) -> int:
        """How many tokens of a waiting sequence are expected to need no new blocks of their own."""
        if self._can_share(sequence):
            return sequence.prompt_length - 1
        found = self._manager.matched(sequence.tokens, sequence.options.cache_salt)
        return min(found, sequence.most_cached)

    def start(self, sequence: Sequence, now: float) -> bool:
        """Makes a waiting or swapped sequence run, with all that can be shared of its tokens or comes back from the
        host; False, and nothing changed, if there are too few blocks."""
        if sequence.state is SequenceState.SWAPPED:
            return self._swap_in(sequence, now)
        if not self._share(sequence, now):
            most = sequence.most_cached
            holding = self._manager.open(sequence.tokens, sequence.options.cache_salt, now, most=most)
            self._admit(sequence, holding, holding.cached)
        return True

    def branch(self, sequence: Sequence, parent: Sequence, computed: int, now: float) -> bool:
        """Makes a waiting sequence run with the blocks of its parent's first ``computed`` tokens; False, and nothing
        changed, where the parent has them no more or there are too few blocks."""
        if parent.holding is None or not self._has_all(parent.holding, computed):
            return False
        holding = self._manager.fork(parent.holding, computed, now)
        if holding is None:
            return False
        self._admit(sequence, holding, computed)
        return True

    def grow(self, sequence: Sequence, rows: int, now: float) -> bool:
        """Blocks for its next ``rows`` rows; False, and nothing changed, if there are too few."""
        assert sequence.holding is not None, "only a running sequence grows"
        return self._manager.grow(sequence.holding, sequence.computed, sequence.computed + rows, now)

    def publish(self, sequence: Sequence, now: float) -> None:
        """Makes what is computed findable, and pins what shall stay; to be called when ``computed`` moved."""
        holding, computed = sequence.holding, sequence.computed
        assert holding is not None, "only a running sequence computes"
        if computed >= holding.due:
            self._manager.publish(holding, sequence.tokens, computed, now)
        if self._pins:
            self._pin(sequence, holding, now)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Gives the blocks of a running sequence back; it will compute its tokens again."""
        self._close(sequence, now)
        sequence.preempt()

    def swap_out(self, sequence: Sequence) -> bool:
        """Moves a running sequence's blocks to the host; False, and nothing changed, if there is no room."""
        assert sequence.holding is not None, "only a running sequence has blocks to swap"
        swapped = self._manager.swap_out(sequence.holding)
        if swapped is None:
            return False
        self._pins.pop(sequence.sequence_id, None)
        sequence.swap_out(swapped)
        return True

    def release(self, sequence: Sequence, now: float) -> None:
        """Gives back all that a sequence has, here or on the host."""
        if sequence.holding is not None:
            self._close(sequence, now)
        if sequence.swapped is not None:
            self._manager.drop(sequence.swapped)
            sequence.swapped = None

    def _can_share(self, sequence: Sequence) -> bool:
        """Whether its parent's blocks hold all of the prompt but the last row, and that row is all it misses."""
        parent, computed = sequence.parent, sequence.prompt_length - 1
        return (
            parent is not None
            and sequence.state is SequenceState.WAITING
            and parent.holding is not None
            and self._has_all(parent.holding, computed)
            and computed <= min(parent.computed, sequence.most_cached)
        )

    def _share(self, sequence: Sequence, now: float) -> bool:
        if sequence.parent is None or not self._can_share(sequence):
            return False
        return self.branch(sequence, sequence.parent, sequence.prompt_length - 1, now)

    def _swap_in(self, sequence: Sequence, now: float) -> bool:
        assert sequence.swapped is not None, "a swapped sequence is on the host"
        computed = sequence.computed
        holding = self._manager.swap_in(sequence.swapped, computed, computed + 1, now)
        if holding is None:
            return False
        sequence.resume(holding)
        self._set_pins(sequence)
        return True

    def _admit(self, sequence: Sequence, holding: Holding, computed: int) -> None:
        sequence.admit(holding, computed)
        self._set_pins(sequence)

    def _set_pins(self, sequence: Sequence) -> None:
        if sequence.options.cache_pins:
            self._pins[sequence.sequence_id] = sequence.options.cache_pins

    def _pin(self, sequence: Sequence, holding: Holding, now: float) -> None:
        pins = self._pins.get(sequence.sequence_id, ())
        while pins and pins[0].tokens <= sequence.computed:
            if self._manager.pin(holding, pins[0].tokens, pins[0].seconds, now):
                whole = pins[0].tokens - pins[0].tokens % self._manager.block_size
                sequence.record.pins.append(HeldPin(whole, pins[0].seconds))
            pins = pins[1:]
            self._pins[sequence.sequence_id] = pins
        if not pins:
            self._pins.pop(sequence.sequence_id, None)

    def _has_all(self, holding: Holding, computed: int) -> bool:
        """Whether no window has passed what a row at ``computed`` reads: its sequence may have gone on since."""
        return computed >= 1 and all(map(le, holding.first, (reach.first(computed) for reach in self._reaches)))

    def _close(self, sequence: Sequence, now: float) -> None:
        assert sequence.holding is not None, "only a running sequence has blocks"
        self._manager.close(sequence.holding, now)
        sequence.holding = None
        self._pins.pop(sequence.sequence_id, None)
