"""The blocks of one sequence, while it runs and while it waits in host memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from twofold.core.step import TableChange
from twofold.engine.kv.radix import RadixNode
from twofold.engine.kv.window import NEVER


class BlockTables:
    """The blocks of one running sequence.

    tables     for each group the block of positions j·block_size …; entries before ``first`` were passed by the window
    first      for each group the first entry that is held
    cached     tokens whose keys and values were there when it was opened
    published  blocks that are in the prefix tree, on the path to ``tip``
    room       positions that the tables hold
    slides     the first row that lets a window pass a block
    sent       for each group the entries of its table that ``take_changes`` has given; None before it gave any
    due        computed tokens at which there is something to publish
    """

    __slots__ = ("cached", "due", "first", "published", "room", "salt", "sent", "slides", "tables", "tip")

    def __init__(self, salt: str, groups: int) -> None:
        self.salt = salt
        self.tables = tuple(array("i") for _ in range(groups))
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
        """What changed in the tables since the last call: all of them at the first."""
        sent = self.sent
        if sent is None:
            sent = self.sent = [0] * len(self.tables)
        changes: tuple[TableChange, ...] = ()
        for group, table in enumerate(self.tables):
            if sent[group] < len(table):
                changes += (TableChange(group, sent[group], table[sent[group] :]),)
                sent[group] = len(table)
        return changes

    def own(self, group: int) -> array[int]:
        """The blocks of a group that it holds, in order."""
        return self.tables[group][self.first[group] :]


@dataclass(frozen=True, slots=True, eq=False)
class Swapped:
    """A sequence whose blocks wait in host memory.

    ``slots`` has for each group the places of its blocks from number ``first`` on; ``text`` are the tokens, as bytes,
    of the blocks that were in the prefix tree: those that still are need not come back from the host.
    """

    salt: str
    text: bytes
    cached: int
    first: tuple[int, ...]
    slots: tuple[array[int], ...]

    @property
    def blocks(self) -> int:
        """Blocks of all groups that wait."""
        return sum(map(len, self.slots))
