"""Who owns which KV block. Pure bookkeeping: the arrays belong to the model.

Laws, held after every call:
    1. A block is free, or held by one or more holders; its reference count is their number.
    2. free + held = all.
    3. Only what is held can be retained or released.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from twofold.core.errors import ResourceError


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
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def blocks(self) -> int:
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self.blocks - self.free

    def take(self, count: int) -> array[int]:
        """``count`` free blocks, each with one holder. Raises ResourceError, taking none, when fewer are free."""
        if count > self.free:
            raise ResourceError(
                f"{count} KV blocks are wanted and {self.free} of {self.blocks} are free.",
                hint="Allow the KV cache more memory, or run fewer or shorter sequences.",
            )
        taken = array("i", (self._free.pop() for _ in range(count)))
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds a holder to each of these held blocks."""
        for block in blocks:
            self._check_held(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Takes a holder from each of these held blocks; one without holders is free again."""
        for block in blocks:
            self._check_held(block)
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def references(self, block: int) -> int:
        """Number of holders of this block."""
        return self._references[block]

    def check(self) -> None:
        """Asserts laws 1 and 2 over the whole pool; O(blocks), for idle moments and tests."""
        unheld = [block for block, count in enumerate(self._references) if count == 0]
        assert all(count >= 0 for count in self._references), "a block has fewer than no holders"
        assert sorted(self._free) == unheld, "the free list and the reference counts disagree"

    def _check_held(self, block: int) -> None:
        assert 0 <= block < self.blocks, f"block {block} does not exist"
        assert self._references[block] > 0, f"block {block} is free and cannot be released or shared"


class BlockTable:
    """The blocks of one sequence, in order of position: entry j holds positions j·block_size …"""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks = array("i")

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return len(self.blocks) * self._pool.block_size

    def grow_to(self, tokens: int) -> None:
        """Takes blocks until ``tokens`` positions fit. Raises ResourceError, taking none, when too few are free."""
        missing = blocks_for(tokens, self._pool.block_size) - len(self.blocks)
        if missing > 0:
            self.blocks.extend(self._pool.take(missing))

    def release(self) -> None:
        """Gives all blocks back."""
        self._pool.release(self.blocks)
        self.blocks = array("i")
