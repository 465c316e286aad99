"""A block manager with its blocks: contents are written, copied and swapped as an executor would, then looked at.

The value at a position stands for the keys and values there: it depends on all tokens up to it, and on the salt.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from twofold.core.step import BlockMove, MoveKind
from twofold.engine.kv.block_tables import BlockTables, Swapped
from twofold.engine.kv.manager import BlockManager, GroupSize

BLOCK, CHUNK = 4, 8
PIN_SECONDS = (10.0, 40.0)
Place = tuple[int, int]

FULL = (GroupSize(None, 24, 16),)
MIXED = (GroupSize(None, 28, 20), GroupSize(10, 16, 12))
TWICE = (GroupSize(None, 24, 16), GroupSize(None, 24, 16), GroupSize(10, 16, 12))
WINDOWS = (GroupSize(21, 20, 20), GroupSize(10, 16, 12))
TINY_WINDOWS = (GroupSize(3, 10, 8), GroupSize(1, 8, 6))
STATES = (*MIXED, GroupSize(None, 7, 3, state=True), GroupSize(None, 7, 2, state=True))
LAYOUTS = {
    "full": FULL,
    "mixed": MIXED,
    "twice": TWICE,
    "states": STATES,
    "windows": WINDOWS,
    "tiny windows": TINY_WINDOWS,
}


@dataclass(eq=False)
class Text:
    """A sequence: ``tables`` while it runs, ``swapped`` while it waits in host memory."""

    tokens: array[int]
    salt: str
    computed: int
    tables: BlockTables | None
    swapped: Swapped | None = None

    def value(self, position: int) -> int:
        return hash((self.salt, bytes(self.tokens[: position + 1])))


@dataclass
class Pinned:
    """The promise of a pin: these tokens are found at least until ``expires``."""

    tokens: array[int]
    salt: str
    seconds: float
    expires: float


@dataclass
class Twin:
    """The manager under test, the contents of its blocks, and the sequences that use it."""

    groups: Sequence[GroupSize]
    caching: bool = True
    now: float = 0.0
    texts: list[Text] = field(default_factory=list)
    pins: list[Pinned] = field(default_factory=list)
    blocks: dict[Place, list[int]] = field(default_factory=dict)
    slots: dict[Place, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paged = [group for group in self.groups if not group.state]
        self.manager = BlockManager(self.groups, BLOCK, prefix_caching=self.caching, chunk=CHUNK)

    def running(self) -> list[Text]:
        return [text for text in self.texts if text.tables is not None]

    def waiting(self) -> list[Text]:
        return [text for text in self.texts if text.swapped is not None]

    def open(self, tokens: array[int], salt: str) -> None:
        expected = self.manager.matched(tokens, salt)
        room = min(self.manager.obtainable())
        tables = self.manager.open(tokens, salt, self.now, most=len(tokens) - 1)
        assert tables.cached == expected or (tables.cached < expected and room < expected)
        assert tables.cached < len(tokens)
        self.texts.append(Text(tokens, salt, tables.cached, tables))

    def step(self, text: Text, rows: int, drawn: int) -> bool:
        """Computes its next rows if blocks can be had, and draws a token once all are computed."""
        tables, start = text.tables, text.computed
        assert tables is not None
        end = min(start + rows, len(text.tokens))
        needed, obtainable, before = self.manager.needed(tables, start, end), self.manager.obtainable(), self.state()
        grown = self.manager.grow(tables, start, end, self.now)
        assert grown == all(n <= o for n, o in zip(needed, obtainable, strict=True))
        if not grown:
            assert self.state() == before
            return False
        self.move()
        for group, table in enumerate(tables.blocks):
            for position in range(start, end):
                contents = self.blocks.setdefault((group, table[position // BLOCK]), [0] * BLOCK)
                contents[position % BLOCK] = text.value(position)
        for state in self._states(tables):
            self.blocks[state] = [text.value(end - 1)]
        tables.reached = text.computed = end
        self.look()
        self.manager.publish(tables, text.tokens, end, self.now)
        if end == len(text.tokens):
            text.tokens.append(drawn)
        self.look()
        return True

    def fork(self, text: Text, back: int) -> bool:
        """Forks ``back`` tokens before what is computed, or there if windows have passed that place."""
        assert text.tables is not None
        before, computed = self.state(), max(0, text.computed - back)
        reads = [self._first(size, computed) // BLOCK for size in self.paged]
        if self.manager.states or any(first > read for first, read in zip(text.tables.first, reads, strict=True)):
            computed = text.computed
        tables = self.manager.fork(text.tables, computed, self.now)
        if tables is None:
            assert self.state() == before
            return False
        assert tables.cached == computed
        tokens = text.tokens[: computed + 1] if computed < len(text.tokens) else text.tokens[:]
        self.texts.append(Text(tokens, text.salt, computed, tables))
        return True

    def close(self, text: Text) -> None:
        self.texts.remove(text)
        if text.tables is not None:
            self.manager.close(text.tables, self.now)
        if text.swapped is not None:
            self.manager.drop(text.swapped)

    def swap_out(self, text: Text) -> bool:
        assert text.tables is not None
        before = self.state()
        text.swapped = self.manager.swap_out(text.tables)
        if text.swapped is None:
            assert self.state() == before
            return False
        text.tables = None
        return True

    def swap_in(self, text: Text) -> bool:
        assert text.swapped is not None
        before = self.state()
        text.tables = self.manager.swap_in(text.swapped, text.computed, len(text.tokens), self.now)
        if text.tables is None:
            assert self.state() == before
            return False
        text.swapped = None
        return True

    def pin(self, text: Text, tokens: int, seconds: float) -> bool:
        """Pins some of what is published; also keeps what the pin promises."""
        assert text.tables is not None
        whole = tokens // BLOCK * BLOCK
        done = self.manager.pin(text.tables, tokens, seconds, self.now)
        if done:
            self.pins.append(Pinned(text.tokens[:whole], text.salt, seconds, self.now + seconds))
        return done

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.manager.expire(self.now)
        self.pins = [pin for pin in self.pins if pin.expires > self.now]

    def state(self) -> tuple[object, ...]:
        """What a call that fails must leave as it was."""
        manager = self.manager
        tables = [
            (*map(tuple, text.tables.blocks), *text.tables.states) for text in self.running() if text.tables is not None
        ]
        return manager.free, manager.cached, manager.held, manager.pinned, manager.free_slots, tables

    def move(self) -> None:
        """Does the moves that were asked for, in order."""
        for move in self.manager.take_moves():
            self._do(move)

    def look(self) -> None:
        """Every running sequence finds in its tables what its next row reads."""
        for text in self.running():
            assert text.tables is not None
            for state in self._states(text.tables) if text.computed else ():
                assert self.blocks[state] == [text.value(text.computed - 1)], "a state is another one"
            for group, (size, table) in enumerate(zip(self.paged, text.tables.blocks, strict=True)):
                for position in range(self._first(size, text.computed), text.computed):
                    contents = self.blocks[group, table[position // BLOCK]]
                    assert contents[position % BLOCK] == text.value(position), "a block holds something else"
                assert all(0 <= block < size.blocks for block in table), "a table names no block"

    def check(self) -> None:
        """All laws of the manager, and that what is pinned is found."""
        manager = self.manager
        manager.check()
        for size, free, cached, held in zip(self.paged, manager.free, manager.cached, manager.held, strict=True):
            assert free + cached + held == size.blocks
        for pin in self.pins:
            assert manager.matched(pin.tokens + array("i", [99]), pin.salt) >= len(pin.tokens), "a pin was broken"

    def _states(self, tables: BlockTables) -> list[Place]:
        return list(enumerate(tables.states, len(self.paged)))

    def _first(self, size: GroupSize, row: int) -> int:
        """The first position that attention reads for a row."""
        return 0 if size.window is None else max(0, row - size.window + 1) // CHUNK * CHUNK

    def _do(self, move: BlockMove) -> None:
        source, target = (move.group, move.source), (move.group, move.target)
        if move.kind is MoveKind.COPY:
            self.blocks[target] = list(self.blocks.get(source, [0] * BLOCK))
        elif move.kind is MoveKind.OUT:
            self.slots[target] = list(self.blocks.get(source, [0] * BLOCK))
        else:
            self.blocks[target] = list(self.slots[source])
