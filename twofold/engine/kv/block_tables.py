"""The blocks of one sequence, while it runs and while it waits in host memory."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import dataclass

from twofold.core.step import NO_TOKENS, IntArray, TableChange
from twofold.engine.kv.radix import RadixNode

NEVER = sys.maxsize


class AttentionWindow:
    """How far back the rows of a KV group see, in blocks. ``window`` (kept as ``positions``), ``chunk`` and
    ``block_size`` count positions.

    With a window of w the row at position p sees positions p − w + 1 … p; with None it sees all before it. Attention
    reads whole chunks of positions, so the first block that it reads is the one in which the chunk of the first visible
    position begins.
    """

    def __init__(self, window: int | None, chunk: int, block_size: int) -> None:
        self.positions = window
        self._chunk = chunk
        self._block_size = block_size

    def first(self, start: int, published: int = 0) -> int:
        """The first block that a row at ``start`` or later reads.

        The last of ``published`` blocks counts as read: holding it keeps the sequence's path in the prefix tree.
        """
        if self.positions is None or start < self.positions:
            return 0
        first = (start - self.positions + 1) // self._chunk * self._chunk // self._block_size
        return min(first, published - 1) if published else first

    def passes(self, block: int) -> int:
        """The position of the first row that no longer reads ``block``; NEVER without a window."""
        if self.positions is None:
            return NEVER
        return -(-(block + 1) * self._block_size // self._chunk) * self._chunk + self.positions - 1

    def max_blocks(self) -> int:
        """The maximum number of blocks that one row can need; NEVER without a window."""
        if self.positions is None:
            return NEVER
        period = range(self.positions - 1, self.positions - 1 + math.lcm(self._chunk, self._block_size))
        return max(row // self._block_size - self.first(row, row // self._block_size) + 1 for row in period)


class BlockTables:
    """The blocks of one running sequence.

    blocks     for each group its table: entry j is the block of the positions from j · block_size on; the window has
               passed the entries before ``first``
    first      for each group the index of the first entry whose block the sequence holds
    cached     tokens whose keys and values were cached when the tables were opened
    published  number of blocks that are in the prefix tree, on the path to ``tip``
    room       number of positions that have a block
    slides     the position of the first row with which a window passes a block
    sent       for each group the number of entries that ``take_changes`` has returned; None before its first call
    states     the slot of its state in each State group, whose block tables have this one entry
    reached    number of tokens that its states have seen, if it has any
    due        number of computed tokens from which on there is a block to publish
    """

    __slots__ = (
        "blocks", "cached", "due", "first", "published", "reached", "room", "salt", "sent", "slides", "states", "tip",
    )  # fmt: skip

    def __init__(self, salt: str, groups: int, states: IntArray = NO_TOKENS) -> None:
        self.salt = salt
        self.states = states
        self.reached = 0
        self.blocks = tuple(array("i") for _ in range(groups))
        self.first = [0] * groups
        self.cached = 0
        self.published = 0
        self.tip: RadixNode | None = None
        self.room = 0
        self.slides = 0
        self.due = NEVER
        self.sent: list[int] | None = None

    def place(self) -> RadixNode | None:
        """The node in which its published blocks end; None before there are any."""
        tip = self.tip
        while tip is not None and tip.start >= self.published:
            tip = tip.parent
        return tip

    def take_changes(self) -> tuple[TableChange, ...]:
        """The changes of the tables since the last call; the first call returns all entries."""
        sent, changes = self.sent, tuple[TableChange, ...]()
        if sent is None:
            sent = self.sent = [0] * len(self.blocks)
            states = enumerate(self.states, len(self.blocks))
            changes = tuple(TableChange(group, 0, array("i", [slot])) for group, slot in states)
        for group, table in enumerate(self.blocks):
            if sent[group] < len(table):
                changes += (TableChange(group, sent[group], table[sent[group] :]),)
                sent[group] = len(table)
        return changes

    def own(self, group: int) -> array[int]:
        """The blocks of a group that it holds, in order."""
        return self.blocks[group][self.first[group] :]


@dataclass(frozen=True, slots=True, eq=False)
class Swapped:
    """A sequence whose blocks wait in host memory.

    ``slots`` are for each group the host slots of its blocks from number ``first`` on, ``states`` those of its states.
    ``text`` are the tokens, as bytes, of the blocks that were in the prefix tree: blocks that are still there need not
    be copied back.
    """

    salt: str
    text: bytes
    cached: int
    first: tuple[int, ...]
    slots: tuple[array[int], ...]
    states: IntArray
    reached: int

    @property
    def blocks(self) -> int:
        """The number of its blocks, over all groups."""
        return sum(map(len, self.slots))
