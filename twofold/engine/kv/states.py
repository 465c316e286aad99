"""The owners of the states of sequences (``core.model.State``): slots in the cache while a sequence runs, and in host
memory while it is swapped out. The arrays are the runner's.

A state is what layers remember of all tokens up to ``reached``; it changes in place with every row and cannot go back.
So it belongs to one sequence, and a prefix is found again only by computing it: a model with states has no prefix
cache until states are kept at the ends of blocks.

Laws:
    1. Open block tables own one slot of each State group, and a swapped sequence one host slot; none has two owners.
    2. A sequence continues, forks or is swapped out only if ``reached`` equals its computed tokens. Its state may be
       ahead of them after rejected drafts, a deferred sample or a pause during the step; then it starts again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from twofold.core.step import BlockMove, IntArray, MoveKind
from twofold.engine.kv.pool import SlotPool


class StateSlots:
    """One pool of slots, and one of host slots, for each State group; their groups follow number ``first``. There are
    as many slots as sequences may run, so ``take`` always finds some."""

    def __init__(self, slots: Iterable[int], host_slots: Iterable[int], first: int) -> None:
        self._slots = [SlotPool(count) for count in slots]
        self._host = [SlotPool(count) for count in host_slots]
        self._first = first

    def __bool__(self) -> bool:
        return bool(self._slots)

    @property
    def swaps(self) -> bool:
        """Whether host memory has room for one more sequence."""
        return all(pool.free for pool in self._host)

    def take(self, *, host: bool = False) -> IntArray:
        """A slot of each group for one sequence."""
        return array("i", [slot for pool in self._pools(host=host) for slot in pool.take(1)])

    def release(self, slots: IntArray, *, host: bool = False) -> None:
        """Gives them back."""
        for pool, slot in zip(self._pools(host=host), slots, strict=True):
            pool.release((slot,))

    def moves(self, kind: MoveKind, sources: IntArray, targets: IntArray) -> list[BlockMove]:
        """The moves of one sequence's states."""
        pairs = enumerate(zip(sources, targets, strict=True), self._first)
        return [BlockMove(kind, group, source, target) for group, (source, target) in pairs]

    def check(self, running: Sequence[IntArray], swapped: Sequence[IntArray]) -> None:
        """Asserts that the slots of running and swapped sequences are those that are taken."""
        for owned, pools in ((running, self._slots), (swapped, self._host)):
            for place, pool in enumerate(pools):
                pool.check(slots[place] for slots in owned)

    def _pools(self, *, host: bool) -> list[SlotPool]:
        return self._host if host else self._slots
