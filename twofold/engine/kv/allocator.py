"""Fills block tables from the pools and the prefix tree, and lists the blocks to move."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from twofold.core.step import BlockMove, MoveKind
from twofold.engine.kv.block_tables import NEVER, AttentionWindow, BlockTables
from twofold.engine.kv.pool import BlockPool, blocks_for
from twofold.engine.kv.radix import ABSENT
from twofold.engine.kv.tree import PrefixTree


class BlockTableAllocator:
    """The open block tables over these pools; ``moves`` are the recorded moves, in order.

    Law: a holding has the last block that it published, so that its path stays in the tree.
    """

    def __init__(
        self, pools: Sequence[BlockPool], reaches: Sequence[AttentionWindow], tree: PrefixTree, *, caching: bool
    ) -> None:
        self._pools = pools
        self._reaches = reaches
        self._tree = tree
        self._caching = caching
        self._block_size = pools[0].block_size
        self.open: set[BlockTables] = set()
        self.moves: list[BlockMove] = []

    def begin(self, salt: str) -> BlockTables:
        """Empty block tables."""
        holding = BlockTables(salt, len(self._pools))
        self.open.add(holding)
        return holding

    def end(self, holding: BlockTables) -> None:
        """Releases everything, the last block first."""
        self.open.remove(holding)
        for group, pool in enumerate(self._pools):
            pool.release(reversed(holding.own(group)))
        holding.tables, holding.tip = tuple(array("i") for _ in self._pools), None

    def measure(self, holding: BlockTables) -> None:
        """Computes until when nothing has to be done for a holding."""
        holding.room = len(holding.tables[0]) * self._block_size
        holding.slides = min(r.passes(first) for r, first in zip(self._reaches, holding.first, strict=True))
        holding.due = (holding.published + 1) * self._block_size if self._caching else NEVER

    def needed(self, group: int, holding: BlockTables, start: int, end: int) -> int:
        """New blocks for rows ``start`` … ``end`` − 1, less those that are released at ``start`` and become free."""
        pool, table = self._pools[group], holding.tables[group]
        passed = table[holding.first[group] : self._reaches[group].first(start, holding.published)]
        back = sum(pool.references(block) == 1 and not pool.pins(block) for block in passed)
        return max(0, blocks_for(end, self._block_size) - len(table) - back)

    def slide(self, holding: BlockTables, start: int) -> None:
        """Releases the blocks that no row from ``start`` on reads."""
        for group, pool in enumerate(self._pools):
            old, new = holding.first[group], self._reaches[group].first(start, holding.published)
            if new > old:
                pool.release(reversed(holding.tables[group][old:new]))
                holding.first[group] = new

    def extend(self, holding: BlockTables, end: int) -> None:
        """Takes blocks until ``end`` positions have one; the caller has checked that there are enough."""
        for group, table in enumerate(holding.tables):
            table.extend(self.take(group, blocks_for(end, self._block_size) - len(table)))

    def take(self, group: int, count: int) -> array[int]:
        """``count`` blocks, evicting idle ones; the caller has checked that there are enough."""
        pool = self._pools[group]
        while pool.free < count:
            self._tree.evict(group)
        return pool.take(max(count, 0))

    def share(self, holding: BlockTables, group: int, blocks: array[int], first: int) -> None:
        """Makes kept or held ``blocks`` the first ones of a holding, which does not hold those before ``first``."""
        blocks[:first] = array("i", bytes(blocks.itemsize * min(first, len(blocks))))
        holding.first[group] = first
        holding.tables[group].extend(blocks)
        self._pools[group].retain(holding.own(group))

    def restore(
        self, holding: BlockTables, firsts: Sequence[int], found: Sequence[array[int]], slots: Sequence[array[int]]
    ) -> None:
        """Moves blocks in from their ``slots``; those that were ``found`` in the tree are shared instead."""
        for group, blocks in enumerate(found):
            first, count = firsts[group], len(slots[group])
            wanted = blocks[first : first + count]
            wanted.extend(array("i", [ABSENT]) * (count - len(wanted)))
            self._pools[group].retain(block for block in wanted if block != ABSENT)
            holding.first[group] = first
            holding.tables[group].extend(array("i", bytes(wanted.itemsize * first)) + wanted)
        for group, table in enumerate(holding.tables):
            absent = [index for index in range(firsts[group], len(table)) if table[index] == ABSENT]
            for index, block in zip(absent, self.take(group, len(absent)), strict=True):
                table[index] = block
                self.move(MoveKind.IN, group, [slots[group][index - firsts[group]]], [block])

    def copy(self, holding: BlockTables, sources: Sequence[int]) -> None:
        """Appends a copy of one block of each group.

        To make room the source itself may be evicted, if nothing else is idle: then it is the copy.
        """
        for group, source in enumerate(sources):
            self._pools[group].touch(source)
        for group, source in enumerate(sources):
            target = self.take(group, 1)
            holding.tables[group].extend(target)
            if target[0] != source:
                self.move(MoveKind.COPY, group, [source], target)

    def offer(self, holding: BlockTables, at: int, whole: int) -> list[array[int]]:
        """A holding's blocks ``at`` … ``whole`` − 1 of a path, ABSENT for those that a window has passed."""
        offered = []
        for group, table in enumerate(holding.tables):
            passed = min(max(holding.first[group] - at, 0), whole - at)
            offered.append(array("i", [ABSENT]) * passed + table[at + passed : whole])
        return offered

    def adopt(self, holding: BlockTables, at: int, blocks: Sequence[array[int]]) -> None:
        """Replaces a holding's blocks from number ``at`` on by the tree's."""
        for group, (pool, theirs) in enumerate(zip(self._pools, blocks, strict=True)):
            table = holding.tables[group]
            first = max(at, holding.first[group])
            if table[first : at + len(theirs)] == theirs[first - at :]:
                continue
            for index in range(first, at + len(theirs)):
                block = theirs[index - at]
                if block != table[index]:
                    pool.retain((block,))
                    pool.release((table[index],))
                    table[index] = block
            if holding.sent is not None:
                holding.sent[group] = min(holding.sent[group], first)

    def move(self, kind: MoveKind, group: int, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Records moves of contents."""
        pairs = zip(sources, targets, strict=True)
        self.moves.extend(BlockMove(kind, group, source, target) for source, target in pairs)
