"""Prefixes that stay cached for a while after their last use, even if other sequences need blocks.

The key of a pin is the last block of its prefix in the widest group: while it is pinned, that block cannot leave its
place in the tree. Several pins may lie on one path; a block is protected until the last of them has expired.

Laws:
    1. At most ``share`` of each pool's blocks are pinned.
    2. Every live pin is in the heap once, at or before the time when it ends.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from twofold.core.report import PinCounts
from twofold.engine.kv.pool import BlockPool
from twofold.engine.kv.radix import ABSENT


@dataclass(slots=True)
class CacheCounters:
    """``queries`` tokens were looked up, of which ``hits`` were found. ``evicted`` blocks of all groups were forgotten
    to make room. ``pins`` are by time to live in seconds."""

    queries: int = 0
    hits: int = 0
    evicted: int = 0
    pins: dict[float, PinCounts] = field(default_factory=dict)

    def pins_of(self, seconds: float) -> PinCounts:
        """The counts of this time to live."""
        return self.pins.setdefault(seconds, PinCounts())


@dataclass(slots=True)
class Pin:
    """The first ``end`` blocks of a path, protected until ``expires``; ``blocks`` are the protected ones, by group."""

    blocks: tuple[array[int], ...]
    end: int
    seconds: float
    expires: float

    @property
    def key(self) -> int:
        return self.blocks[0][-1]


class PinBoard:
    """All pins on these pools."""

    def __init__(self, pools: Sequence[BlockPool], share: float, counters: CacheCounters) -> None:
        self._pools = pools
        self._max_pinned = [int(share * pool.blocks) for pool in pools]
        self._counters = counters
        self._block_size = pools[0].block_size
        self._pins: dict[int, Pin] = {}
        self._heap: list[tuple[float, int, Pin]] = []
        self._serial = 0

    def add(self, blocks: tuple[array[int], ...], end: int, seconds: float, now: float) -> bool:
        """Pins these blocks of the first ``end`` of a path, or prolongs the pin that they have.

        False if too many blocks are pinned, or if one of ``blocks`` is ABSENT.
        """
        pin = self._pins.get(blocks[0][-1])
        if pin is not None:
            pin.seconds = max(pin.seconds, seconds)
            pin.expires = now + pin.seconds
            return True
        counts = self._counters.pins_of(seconds)
        if not all(map(_fits, self._pools, self._max_pinned, blocks)):
            counts.refused += end * self._block_size
            return False
        counts.written += _unpinned(self._pools[0], blocks[0]) * self._block_size
        for pool, own in zip(self._pools, blocks, strict=True):
            pool.pin(own)
        pin = Pin(blocks, end, seconds, now + seconds)
        self._pins[pin.key] = pin
        self._push(pin)
        return True

    def read(self, blocks: Iterable[int], tokens: int, now: float) -> None:
        """Prolongs the pins on these blocks of the widest group, from which a prompt reads ``tokens`` tokens.

        A pin whose last block the prompt reads only in part is prolonged, too.
        """
        if not self._pins:
            return
        before = 0
        for pin in sorted((self._pins[key] for key in self._pins.keys() & set(blocks)), key=lambda pin: pin.end):
            pin.expires = now + pin.seconds
            upto = min(pin.end * self._block_size, tokens)
            self._counters.pins_of(pin.seconds).read += upto - before
            before = upto

    def expire(self, now: float) -> None:
        """Ends the pins whose time is up; O(log pins) each."""
        while self._heap and self._heap[0][0] <= now:
            pin = heapq.heappop(self._heap)[2]
            if pin.expires > now:
                self._push(pin)
            else:
                self._end(pin)

    def check(self) -> None:
        """Asserts the laws, and that the pools count exactly these pins."""
        live = [pin for _, _, pin in self._heap]
        assert {pin.key: pin for pin in live} == self._pins, "a pin is lost"
        assert len(live) == len(self._pins), "a pin is in the heap twice"
        assert all(time <= pin.expires for time, _, pin in self._heap), "a pin is in the heap after its end"
        for group, (pool, most) in enumerate(zip(self._pools, self._max_pinned, strict=True)):
            assert pool.pinned <= most, f"{pool.pinned} blocks are pinned and at most {most} may be"
            counts = [0] * pool.blocks
            for pin in live:
                for block in pin.blocks[group]:
                    counts[block] += 1
            assert all(pool.pins(block) == count for block, count in enumerate(counts)), "pins are counted wrongly"

    def _end(self, pin: Pin) -> None:
        del self._pins[pin.key]
        for group, (pool, own) in enumerate(zip(self._pools, pin.blocks, strict=True)):
            gone = pool.unpin(reversed(own))
            if group == 0:
                self._counters.pins_of(pin.seconds).expired += gone * self._block_size

    def _push(self, pin: Pin) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (pin.expires, self._serial, pin))


def _unpinned(pool: BlockPool, blocks: array[int]) -> int:
    return sum(not pool.pins(block) for block in blocks)


def _fits(pool: BlockPool, most: int, blocks: array[int]) -> bool:
    return ABSENT not in blocks and pool.pinned + _unpinned(pool, blocks) <= most
