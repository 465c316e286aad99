"""The owners of each KV block. The arrays with the blocks' contents belong to the runner.

A block is in one of three states:
    free      without an owner
    held      one or more sequences hold it, whether or not the prefix tree keeps it, too
    cached    only the tree keeps it: idle, so that it may be evicted, or pinned

Laws, held after every call:
    1. A held block's reference count is the number of its holders; the count of other blocks is 0.
    2. free + cached + held = all.
    3. A block is idle exactly when it is kept, not held and not pinned. Idle blocks are in the order of their last use.
    4. Only what is held or kept can be retained; only what is kept can be pinned.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from twofold.core.errors import ResourceError
from twofold.core.report import PoolPicture


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold the keys and values of ``tokens`` positions."""
    return -(-tokens // block_size)


class BlockPool:
    """``blocks`` KV blocks of ``block_size`` positions, numbered from 0. Every operation is O(1) a block."""

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {blocks} blocks of {block_size} positions is impossible")
        self.block_size = block_size
        self._references = array("i", bytes(4 * blocks))
        self._pins = array("i", bytes(4 * blocks))
        self._kept = bytearray(blocks)
        self._free = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held = 0
        self._pinned = 0

    @property
    def blocks(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self._held

    @property
    def cached(self) -> int:
        return self.blocks - len(self._free) - self._held

    @property
    def pinned(self) -> int:
        """Blocks with a pin, held or not."""
        return self._pinned

    @property
    def obtainable(self) -> int:
        """Blocks that are free or would be, once the idle ones are forgotten."""
        return len(self._free) + len(self._idle)

    def take(self, count: int) -> array[int]:
        """``count`` free blocks, each with one holder. Raises ResourceError, taking none, when fewer are free."""
        if count > self.free:
            raise ResourceError(
                f"{count} KV blocks are needed; {self.free} of {self.blocks} are free.",
                hint="Enlarge the KV cache, or run fewer or shorter sequences.",
            )
        taken = array("i", (self._free.pop() for _ in range(count)))
        for block in taken:
            self._references[block] = 1
        self._held += count
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Counts one more holder of each of these blocks. No block may be free."""
        references = self._references
        for block in blocks:
            count = references[block]
            if not count:
                assert self._kept[block], f"block {block} is free and cannot be released or shared"
                self._idle.pop(block, None)
                self._held += 1
            references[block] = count + 1

    def release(self, blocks: Iterable[int]) -> None:
        """Removes a holder from each of these held blocks; a block without holders is idle if kept, otherwise free.

        Blocks become idle in the given order. Sequences release their last block first, so that it is evicted first.
        """
        references = self._references
        for block in blocks:
            count = self._held_count(block) - 1
            references[block] = count
            if not count:
                self._held -= 1
                self._settle(block)

    def keep(self, block: int) -> None:
        """Marks a held block as kept: after its last release it is idle instead of free."""
        self._held_count(block)
        assert not self._kept[block], f"block {block} is kept already"
        self._kept[block] = 1

    def forget(self, block: int) -> None:
        """Removes the mark of a kept block without pins; it is free unless held."""
        assert self._kept[block], f"block {block} is not kept"
        assert not self._pins[block], f"block {block} is pinned and cannot be forgotten"
        self._kept[block] = 0
        if not self._references[block]:
            del self._idle[block]
            self._free.append(block)

    def oldest(self) -> int:
        """The idle block whose last use is longest ago; there must be one."""
        return next(iter(self._idle))

    def touch(self, block: int) -> None:
        """Makes an idle block the most recently used one; does nothing for other blocks."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def kept(self, block: int) -> bool:
        return bool(self._kept[block])

    def references(self, block: int) -> int:
        """Number of holders of this block."""
        return self._references[block]

    def pins(self, block: int) -> int:
        """Number of pins on this block."""
        return self._pins[block]

    def pin(self, blocks: Iterable[int]) -> None:
        """Adds a pin to each of these kept blocks: they cannot become idle."""
        for block in blocks:
            assert self._kept[block], f"block {block} is not kept and cannot be pinned"
            if not self._pins[block]:
                self._pinned += 1
                self._idle.pop(block, None)
            self._pins[block] += 1

    def unpin(self, blocks: Iterable[int]) -> int:
        """Removes a pin from each of these blocks, in this order; returns how many of them have no pin left."""
        before = self._pinned
        for block in blocks:
            assert self._pins[block] > 0, f"block {block} has no pin"
            self._pins[block] -= 1
            if not self._pins[block]:
                self._pinned -= 1
                if not self._references[block]:
                    self._settle(block)
        return before - self._pinned

    def picture(self, tables: Iterable[tuple[int, Sequence[int]]]) -> PoolPicture:
        """What the blocks are, given the blocks of each sequence with its number; O(held blocks)."""
        references, held = self._references, []
        shared: set[int] = set()
        for number, own in tables:
            alone = [block for block in own if references[block] == 1]
            held.append((number, len(alone)))
            if len(alone) < len(own):
                shared.update(block for block in own if references[block] > 1)
        store = self._held - len(shared) - sum(count for _, count in held)
        cached = len(self._idle)
        return PoolPicture(self.blocks, self.free, cached, self.cached - cached, len(shared), store, tuple(held))

    def check(self) -> None:
        """Asserts the laws over the whole pool; O(blocks), for idle moments and tests."""
        assert all(count >= 0 for count in self._references), "a block has a negative number of holders"
        unheld = [block for block, count in enumerate(self._references) if not count]
        assert [block for block in unheld if not self._kept[block]] == sorted(self._free), (
            "the free list and the reference counts disagree"
        )
        idle = [block for block in unheld if self._kept[block] and not self._pins[block]]
        assert idle == sorted(self._idle), "idle blocks are not those that are kept, not held and not pinned"
        assert all(kept or not pins for kept, pins in zip(self._kept, self._pins, strict=True)), "a pin without a block"
        assert self._held == self.blocks - len(unheld), "held blocks are counted wrongly"
        assert self._pinned == sum(pins > 0 for pins in self._pins), "pinned blocks are counted wrongly"

    def age(self) -> dict[int, int]:
        """The idle blocks with their ranks, 0 for the oldest; O(idle), for checks."""
        return {block: rank for rank, block in enumerate(self._idle)}

    def _settle(self, block: int) -> None:
        """Makes a block without holders or pins free or idle."""
        if not self._kept[block]:
            self._free.append(block)
        elif not self._pins[block]:
            self._idle[block] = None

    def _held_count(self, block: int) -> int:
        assert 0 <= block < self.blocks, f"block {block} does not exist"
        count = self._references[block]
        assert count > 0, f"block {block} is free and cannot be released or shared"
        return count


class SlotPool:
    """``slots`` slots in host memory, numbered from 0, each for one block of a preempted sequence; there may be none.

    Law: free + taken = all.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> array[int]:
        """``count`` slots; the caller has checked that there are enough."""
        assert count <= len(self._free), f"{count} host slots are wanted and {len(self._free)} are free"
        taken = array("i", (self._free.pop() for _ in range(count)))
        self._taken.update(taken)
        return taken

    def release(self, slots: Iterable[int]) -> None:
        """Gives taken slots back."""
        for slot in slots:
            assert slot in self._taken, f"host slot {slot} is free already"
            self._taken.remove(slot)
            self._free.append(slot)

    def check(self, held: Iterable[int]) -> None:
        """Asserts the law, and that exactly the ``held`` slots are taken."""
        assert sorted(held) == sorted(self._taken), "host slots leaked"
        assert sorted([*self._free, *self._taken]) == list(range(self.slots)), "a host slot is lost"
