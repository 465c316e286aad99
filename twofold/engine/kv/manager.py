"""Which blocks each sequence has, which prefixes are cached, and which blocks must move. The arrays are the runner's.

``open`` finds a sequence's longest cached prefix, ``grow`` takes blocks for the rows of the next step, ``publish`` adds
computed blocks to the prefix tree, ``close`` releases everything. ``fork`` shares a sequence's blocks with another,
``swap_out`` and ``swap_in`` move it to host memory and back, ``pin`` protects a prefix for a while.

Block moves carry the contents along. A move is recorded when its blocks change owners, and all moves are done in that
order before the rows of the next step. So a block may be reused at once: the move out of it precedes the move into it,
and all rows follow.

Laws: those of ``pool`` (free + cached + held = all, for each group), ``tree`` and ``pins``, and for the
block tables of every sequence:
    1. The tables hold their blocks from ``first`` on; in a group without a window these are all blocks.
    2. Among the first ``published`` blocks, the tables hold only blocks of the tree.
    3. A full block is never written again. Only the block after the last full one is written, and it is not shared.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import gt, le

from twofold.core.report import KVPicture
from twofold.core.step import BlockMove, MoveKind
from twofold.engine.kv.block_tables import NEVER, AttentionWindow, BlockTables, Swapped
from twofold.engine.kv.names import BlockJournal, BlockKeys
from twofold.engine.kv.pins import CacheCounters, PinBoard
from twofold.engine.kv.pool import BlockPool, SlotPool, blocks_for
from twofold.engine.kv.radix import ABSENT, TOKEN_BYTES, Path, Root, after_hole, path_to
from twofold.engine.kv.states import StateSlots
from twofold.engine.kv.tree import PrefixTree


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The blocks of the layers that see ``window`` positions (None: all), and their slots in host memory. With
    ``state``: the states of the layers that keep one for each sequence."""

    window: int | None
    blocks: int
    host_slots: int = 0
    state: bool = False


class BlockTableAllocator:
    """Fills block tables from the pools and the prefix tree. ``open`` are the tables in use, ``moves`` the recorded
    moves of blocks, in order.

    Law: tables hold the last block that they published, which keeps their path in the tree.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        windows: Sequence[AttentionWindow],
        tree: PrefixTree,
        states: StateSlots,
        *,
        caching: bool,
    ) -> None:
        self._pools = pools
        self._states = states
        self._windows = windows
        self._tree = tree
        self._caching = caching
        self._block_size = pools[0].block_size
        self.open: set[BlockTables] = set()
        self.moves: list[BlockMove] = []

    def begin(self, salt: str) -> BlockTables:
        """Empty block tables."""
        tables = BlockTables(salt, len(self._pools), self._states.take())
        self.open.add(tables)
        return tables

    def end(self, tables: BlockTables) -> None:
        """Releases everything, the last block first."""
        self.open.remove(tables)
        self._states.release(tables.states)
        for group, pool in enumerate(self._pools):
            pool.release(reversed(tables.own(group)))
        tables.blocks, tables.tip = tuple(array("i") for _ in self._pools), None

    def measure(self, tables: BlockTables) -> None:
        """Updates the positions up to which the tables need no change."""
        tables.room = len(tables.blocks[0]) * self._block_size
        tables.slides = min(window.passes(first) for window, first in zip(self._windows, tables.first, strict=True))
        tables.due = (tables.published + 1) * self._block_size if self._caching else NEVER

    def needed(self, group: int, tables: BlockTables, start: int, end: int) -> int:
        """New blocks for rows ``start`` … ``end`` − 1, less those that are released at ``start`` and become free."""
        pool, table = self._pools[group], tables.blocks[group]
        passed = table[tables.first[group] : self._windows[group].first(start, tables.published)]
        back = sum(pool.references(block) == 1 and not pool.pins(block) for block in passed)
        return max(0, blocks_for(end, self._block_size) - len(table) - back)

    def slide(self, tables: BlockTables, start: int) -> None:
        """Releases the blocks that no row from ``start`` on reads."""
        for group, pool in enumerate(self._pools):
            old, new = tables.first[group], self._windows[group].first(start, tables.published)
            if new > old:
                pool.release(reversed(tables.blocks[group][old:new]))
                tables.first[group] = new

    def extend(self, tables: BlockTables, end: int) -> None:
        """Takes blocks until ``end`` positions have one; the caller has checked that there are enough."""
        for group, table in enumerate(tables.blocks):
            table.extend(self.take(group, blocks_for(end, self._block_size) - len(table)))

    def take(self, group: int, count: int) -> array[int]:
        """``count`` blocks, evicting idle ones; the caller has checked that there are enough."""
        pool = self._pools[group]
        while pool.free < count:
            self._tree.evict(group)
        return pool.take(max(count, 0))

    def share(self, tables: BlockTables, group: int, blocks: array[int], first: int) -> None:
        """Makes kept or held ``blocks`` the first ones of these tables, which hold them from number ``first`` on."""
        blocks[:first] = array("i", bytes(blocks.itemsize * min(first, len(blocks))))
        tables.first[group] = first
        tables.blocks[group].extend(blocks)
        self._pools[group].retain(tables.own(group))

    def restore(
        self, tables: BlockTables, firsts: Sequence[int], found: Sequence[array[int]], slots: Sequence[array[int]]
    ) -> None:
        """Moves blocks in from their ``slots``; those that were ``found`` in the tree are shared instead."""
        for group, blocks in enumerate(found):
            first, count = firsts[group], len(slots[group])
            wanted = blocks[first : first + count]
            wanted.extend(array("i", [ABSENT]) * (count - len(wanted)))
            self._pools[group].retain(block for block in wanted if block != ABSENT)
            tables.first[group] = first
            tables.blocks[group].extend(array("i", bytes(wanted.itemsize * first)) + wanted)
        for group, table in enumerate(tables.blocks):
            absent = [index for index in range(firsts[group], len(table)) if table[index] == ABSENT]
            for index, block in zip(absent, self.take(group, len(absent)), strict=True):
                table[index] = block
                self.move(MoveKind.IN, group, [slots[group][index - firsts[group]]], [block])

    def copy(self, tables: BlockTables, sources: Sequence[int]) -> None:
        """Appends a copy of one block of each group.

        If no other block is free or idle, the source itself is evicted and becomes the copy.
        """
        for group, source in enumerate(sources):
            self._pools[group].touch(source)
        for group, source in enumerate(sources):
            target = self.take(group, 1)
            tables.blocks[group].extend(target)
            if target[0] != source:
                self.move(MoveKind.COPY, group, [source], target)

    def offer(self, tables: BlockTables, at: int, whole: int) -> list[array[int]]:
        """The tables' blocks ``at`` … ``whole`` − 1 of a path, ABSENT for those that a window has passed."""
        offered = []
        for group, table in enumerate(tables.blocks):
            passed = min(max(tables.first[group] - at, 0), whole - at)
            offered.append(array("i", [ABSENT]) * passed + table[at + passed : whole])
        return offered

    def adopt(self, tables: BlockTables, at: int, blocks: Sequence[array[int]]) -> None:
        """Replaces the tables' blocks from number ``at`` on by the tree's."""
        for group, (pool, theirs) in enumerate(zip(self._pools, blocks, strict=True)):
            table = tables.blocks[group]
            first = max(at, tables.first[group])
            if table[first : at + len(theirs)] == theirs[first - at :]:
                continue
            for index in range(first, at + len(theirs)):
                block = theirs[index - at]
                if block != table[index]:
                    pool.retain((block,))
                    pool.release((table[index],))
                    table[index] = block
            if tables.sent is not None:
                tables.sent[group] = min(tables.sent[group], first)

    def move_states(self, kind: MoveKind, sources: array[int], targets: array[int]) -> None:
        """Records moves of the states of one sequence."""
        self.moves += self._states.moves(kind, sources, targets)

    def move(self, kind: MoveKind, group: int, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Records moves of contents."""
        pairs = zip(sources, targets, strict=True)
        self.moves.extend(BlockMove(kind, group, source, target) for source, target in pairs)

    def check(self) -> None:
        """Asserts that the open tables account for all references, and that their published blocks are the tree's."""
        for group, pool in enumerate(self._pools):
            counts = Counter(block for tables in self.open for block in tables.own(group))
            assert all(pool.references(block) == counts[block] for block in range(pool.blocks)), "a wrong count"
        for tables in self.open:
            path = path_to(tables.place(), tables.published)
            assert not path.nodes or isinstance(path.nodes[0].parent, Root), "the path of tables leads to no root"
            published = tables.published
            assert not published or tables.first[0] < published, "tables lost their place in the tree"
            for group, (table, first) in enumerate(zip(tables.blocks, tables.first, strict=True)):
                assert path.blocks(group)[first:] == table[first:published], "a published block is not the tree's"


class BlockManager:
    """The blocks of a model's KV groups, those without a window first, and the ``states`` of State groups, the last.

    ``pinned_share`` of each group's blocks may be pinned. Attention reads positions in chunks of ``chunk``. Every call
    with a time first ends the pins that have expired. ``windows`` are the attention windows of the groups.
    """

    def __init__(
        self,
        groups: Sequence[GroupSize],
        block_size: int,
        *,
        prefix_caching: bool = True,
        pinned_share: float = 0.5,
        chunk: int = 1,
    ) -> None:
        paged = [group for group in groups if not group.state]
        own = groups[len(paged) :]
        if not paged or any(b.window is None and a.window is not None for a, b in pairwise(paged)):
            raise ValueError("there must be a KV group with blocks, and those without a window are the first")
        if not all(group.state for group in own):
            raise ValueError("groups of states are the last")
        self.block_size = block_size
        self.prefix_caching = prefix_caching and not own  # a state after a shared prefix would have to be kept, too
        self.counters = CacheCounters()
        self.states = StateSlots([size.blocks for size in own], [size.host_slots for size in own], len(paged))
        self._pools = [BlockPool(group.blocks, block_size) for group in paged]
        self._slots = [SlotPool(group.host_slots) for group in paged]
        self.windows = [AttentionWindow(group.window, chunk, block_size) for group in paged]
        self._tree = PrefixTree(self._pools, self.windows, self.counters)
        self._pins = PinBoard(self._pools, pinned_share, self.counters)
        self._allocator = BlockTableAllocator(
            self._pools, self.windows, self._tree, self.states, caching=self.prefix_caching
        )
        self._swapped: set[Swapped] = set()

    @property
    def free(self) -> tuple[int, ...]:
        """Free blocks of each group."""
        return tuple(pool.free for pool in self._pools)

    @property
    def cached(self) -> tuple[int, ...]:
        """Blocks of each group that only the prefix tree keeps."""
        return tuple(pool.cached for pool in self._pools)

    @property
    def held(self) -> tuple[int, ...]:
        """Blocks of each group that running sequences hold."""
        return tuple(pool.held for pool in self._pools)

    @property
    def pinned(self) -> tuple[int, ...]:
        """Blocks of each group that a pin protects, held or not."""
        return tuple(pool.pinned for pool in self._pools)

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Free slots in host memory, for each group."""
        return tuple(slots.free for slots in self._slots)

    def name_blocks(self, keys: BlockKeys) -> BlockJournal:
        """Names the blocks that are in the prefix cache, and those that enter and leave it."""
        journal = BlockJournal(keys)
        self._tree.keep_journal(journal)
        return journal

    def end_names(self, journal: BlockJournal) -> None:
        """Ends a journal of ``name_blocks``."""
        self._tree.journals.remove(journal)

    def largest(self) -> int:
        """The maximum number of positions of one sequence, with all pools to itself and steps of one row."""
        return min(
            NEVER if pool.blocks >= window.max_blocks() else pool.blocks * self.block_size
            for pool, window in zip(self._pools, self.windows, strict=True)
        )

    def matched(self, tokens: array[int], salt: str) -> int:
        """The number of cached tokens that ``open`` would find for a prompt less its last token. Changes nothing."""
        if not self.prefix_caching:
            return 0
        path = self._tree.find(salt, tokens[:-1].tobytes())
        return path.whole * self.block_size + path.extra

    def needed(self, tables: BlockTables | None, start: int, end: int) -> tuple[int, ...]:
        """The number of new blocks of each group that rows ``start`` … ``end`` − 1 need.

        Blocks that ``grow`` would release at ``start`` are subtracted. Without tables: for a sequence whose first
        ``start`` tokens are cached, and which shares their whole blocks.
        """
        if tables is None:
            return (blocks_for(end, self.block_size) - start // self.block_size,) * len(self._pools)
        if end <= tables.room and start < tables.slides:
            return (0,) * len(self._pools)
        return tuple(self._allocator.needed(group, tables, start, end) for group in range(len(self._pools)))

    def obtainable(self) -> tuple[int, ...]:
        """Blocks of each group that are free or can be evicted."""
        return tuple(pool.obtainable for pool in self._pools)

    def open(self, tokens: array[int], salt: str, now: float, *, most: int) -> BlockTables:
        """The tables of a new sequence, with the blocks of its longest cached prefix of at most ``most`` tokens.

        Whole blocks are shared. If the prefix ends inside a block, that block is copied, provided that one can be had.
        """
        assert most < len(tokens), "the last token of a prompt is always computed"
        self._pins.expire(now)
        tables = self._allocator.begin(salt)
        if self.prefix_caching:
            self._reuse(tables, tokens[: max(most, 0)].tobytes(), now)
            self.counters.queries += len(tokens)
            self.counters.hits += tables.cached
        self._allocator.measure(tables)
        return tables

    def grow(self, tables: BlockTables, start: int, end: int, now: float) -> bool:
        """Takes blocks for rows ``start`` … ``end`` − 1, and releases those that no row from ``start`` on reads.

        False, with nothing changed, if there are too few.
        """
        if end <= tables.room and start < tables.slides:
            return True
        self._pins.expire(now)
        if any(map(gt, self.needed(tables, start, end), self.obtainable())):
            return False
        self._allocator.slide(tables, start)
        self._allocator.extend(tables, end)
        self._allocator.measure(tables)
        return True

    def publish(self, tables: BlockTables, tokens: array[int], computed: int, now: float) -> None:
        """Makes the whole blocks of the first ``computed`` tokens findable.

        If the tree already has a block with the same tokens, the sequence uses that block and releases its own: their
        contents are the same to the bit.
        """
        if computed < tables.due:
            return
        self._pins.expire(now)
        at, whole = tables.published, computed // self.block_size
        if tables.first[0] >= whole:
            return
        text = tokens[at * self.block_size : whole * self.block_size].tobytes()
        blocks = self._allocator.offer(tables, at, whole)
        tables.tip = self._tree.put(tables.salt, tables.place(), at, text, blocks)
        tables.published = whole
        self._allocator.adopt(tables, at, blocks)
        self._allocator.measure(tables)

    def fork(self, tables: BlockTables, computed: int, now: float) -> BlockTables | None:
        """The tables of a second sequence with the same first ``computed`` tokens, all of them cached for it.

        The first sequence may have computed more, as long as no window has passed a block that the row at ``computed``
        reads. Whole blocks are shared, a partial last one is copied. None, with nothing changed, if there are too few.
        """
        assert self.has_all(tables, computed), "a window has passed that place, or a state has gone on"
        self._pins.expire(now)
        whole, rest = divmod(computed, self.block_size)
        if rest and not all(self.obtainable()):
            return None
        other = self._allocator.begin(tables.salt)
        other.cached = computed
        other.published = min(tables.published, whole)
        other.tip = tables.place()
        other.reached = tables.reached
        self._allocator.move_states(MoveKind.COPY, tables.states, other.states)
        for group, table in enumerate(tables.blocks):
            first = max(tables.first[group], self.windows[group].first(computed, other.published))
            self._allocator.share(other, group, table[:whole], first)
        if other.first[0] >= other.published:
            other.published, other.tip = 0, None
        if rest:
            self._allocator.copy(other, [table[whole] for table in tables.blocks])
        self._allocator.measure(other)
        return other

    def has_all(self, tables: BlockTables, computed: int) -> bool:
        """Whether the tables have all that a row at ``computed`` reads: windows may have passed some blocks, and states
        may have seen other tokens."""
        return (not self.states or tables.reached == computed) and all(
            map(le, tables.first, (window.first(computed) for window in self.windows))
        )

    def close(self, tables: BlockTables, now: float) -> None:
        """Releases all blocks of a sequence. Published ones stay cached until they are needed elsewhere."""
        self._pins.expire(now)
        self._allocator.end(tables)

    def kept(self, text: array[int], salt: str) -> tuple[int, tuple[int, ...]]:
        """The number of a text's whole blocks in the tree, and for each group the first block after the last one that
        it has lost."""
        path = self._tree.follow(salt, text.tobytes())
        return path.whole, tuple(after_hole(path.blocks(group)) for group in range(len(self._pools)))

    def reads(self, whole: int) -> tuple[int, ...]:
        """For each group the first of ``whole`` blocks that a row after them reads."""
        return tuple(window.first(whole * self.block_size, whole) for window in self.windows)

    def texts(self, least: int) -> list[tuple[str, array[int]]]:
        """The texts of at least so many tokens in the tree, with their salts, the most recently used first."""
        return [(salt, text) for salt, text in self._tree.texts() if len(text) >= least]

    def reserve(
        self,
        text: array[int],
        salt: str,
        keep: int,
        end: int,
        firsts: Sequence[int],
        now: float,
        *,
        spare: float = 0.0,
    ) -> BlockTables | None:
        """Tables that hold, for each group from block ``firsts`` on, the first ``keep`` blocks of a text, which are in
        the tree, and new blocks up to ``end``, which the caller fills before it publishes them.

        None, with nothing changed, if there are too few blocks, or fewer than the share ``spare`` would be left, or if
        sequences have states, without which a prefix is of no use.
        """
        if self.states:
            return None
        self._pins.expire(now)
        path = self._tree.follow(salt, text[: keep * self.block_size].tobytes())
        assert path.whole == keep, "the tree has lost blocks"
        found = [path.blocks(group) for group in range(len(self._pools))]
        for pool, blocks, first in zip(self._pools, found, firsts, strict=True):
            assert ABSENT not in blocks[first:], "a window has lost a block that is needed"
            taken = end - max(keep, first) + sum(map(pool.is_idle, blocks[first:]))
            if taken > pool.obtainable - spare * pool.blocks:
                return None
        tables = self._allocator.begin(salt)
        for group, (blocks, first) in enumerate(zip(found, firsts, strict=True)):
            self._allocator.share(tables, group, blocks, min(first, keep))
        for group, first in enumerate(firsts):
            table = tables.blocks[group]
            table.extend(array("i", bytes(table.itemsize * max(first - keep, 0))))
            table.extend(self._allocator.take(group, end - len(table)))
            tables.first[group] = first
        if tables.first[0] < keep:
            tables.published, tables.tip = keep, path.tip
        self._allocator.measure(tables)
        return tables

    def pin(self, tables: BlockTables, tokens: int, seconds: float, now: float) -> bool:
        """The whole blocks of the first ``tokens`` published tokens stay cached for ``seconds`` after their last use.

        A pin on the same blocks is prolonged; the longer time to live wins. False if no such blocks are published, if
        the share of pinned blocks is used up, or if a window has lost a block that a row after these tokens reads.
        """
        self._pins.expire(now)
        end = tokens // self.block_size
        if not 0 < end <= tables.published:
            return False
        path = path_to(tables.place(), end)
        firsts = [window.first(end * self.block_size, end) for window in self.windows]
        blocks = tuple(path.blocks(group)[first:] for group, first in enumerate(firsts))
        return self._pins.add(blocks, end, seconds, now)

    def swap_out(self, tables: BlockTables) -> Swapped | None:
        """Moves a sequence's blocks to host memory and closes its tables. None, with nothing changed, if there are too
        few slots."""
        own = [tables.own(group) for group in range(len(self._pools))]
        if not self.states.swaps or any(
            len(blocks) > slots.free for blocks, slots in zip(own, self._slots, strict=True)
        ):
            return None
        taken = tuple(slots.take(len(blocks)) for blocks, slots in zip(own, self._slots, strict=True))
        for group, (blocks, targets) in enumerate(zip(own, taken, strict=True)):
            self._allocator.move(MoveKind.OUT, group, blocks, targets)
        states = self.states.take(host=True)
        self._allocator.move_states(MoveKind.OUT, tables.states, states)
        text = path_to(tables.place(), tables.published).text(self.block_size)
        swapped = Swapped(tables.salt, text, tables.cached, tuple(tables.first), taken, states, tables.reached)
        self._swapped.add(swapped)
        self._allocator.end(tables)
        return swapped

    def swap_in(self, swapped: Swapped, start: int, end: int, now: float) -> BlockTables | None:
        """Brings a sequence back, with blocks for rows ``start`` … ``end`` − 1; blocks still in the tree are shared.

        None, with nothing changed, if there are too few blocks.
        """
        self._pins.expire(now)
        path = self._tree.follow(swapped.salt, swapped.text)
        found = [path.blocks(group) for group in range(len(self._pools))]
        if any(self._lacks(group, swapped, blocks, end) for group, blocks in enumerate(found)):
            return None
        tables = self._allocator.begin(swapped.salt)
        tables.cached, tables.reached = swapped.cached, swapped.reached
        self._allocator.move_states(MoveKind.IN, swapped.states, tables.states)
        self._allocator.restore(tables, swapped.first, found, swapped.slots)
        self.drop(swapped)
        self._allocator.extend(tables, end)
        self._allocator.slide(tables, start)
        self._allocator.measure(tables)
        return tables

    def drop(self, swapped: Swapped) -> None:
        """Frees the host slots of a swapped sequence."""
        self._swapped.remove(swapped)
        self.states.release(swapped.states, host=True)
        for slots, taken in zip(self._slots, swapped.slots, strict=True):
            slots.release(taken)

    def picture(self, tables: Iterable[tuple[int, BlockTables]]) -> KVPicture:
        """What the blocks of each group are, given the tables of sequences by number, and an outline of the tree."""
        tables = list(tables)
        pools = (
            pool.picture((number, own.own(group)) for number, own in tables) for group, pool in enumerate(self._pools)
        )
        return KVPicture(tuple(pools), self._tree.outline())

    @property
    def moving(self) -> bool:
        """Whether recorded moves are not done: until then new blocks must not be filled from elsewhere."""
        return bool(self._allocator.moves)

    def take_moves(self) -> tuple[BlockMove, ...]:
        """The moves recorded since the last call, in the order in which they have to be done."""
        moves, self._allocator.moves = tuple(self._allocator.moves), []
        return moves

    def expire(self, now: float) -> None:
        """Ends the pins whose time is up; their blocks are the last to be evicted."""
        self._pins.expire(now)

    def check(self) -> None:
        """Asserts all laws; O(blocks), for idle moments and tests."""
        for pool in self._pools:
            pool.check()
        self._pins.check()
        self._tree.check()
        self._allocator.check()
        states = [tables.states for tables in self._allocator.open]
        self.states.check(states, [swapped.states for swapped in self._swapped])
        for group, slots in enumerate(self._slots):
            slots.check(slot for swapped in self._swapped for slot in swapped.slots[group])

    def _reuse(self, tables: BlockTables, text: bytes, now: float) -> None:
        """Shares the cached blocks of a text, copies a last one that is used in part, and prolongs pins on the path."""
        path = self._tree.find(tables.salt, text)
        if path.extra and not self._can_copy(path):
            path = self._tree.find(tables.salt, text[: path.whole * self.block_size * TOKEN_BYTES])
        sources = path.source_blocks() if path.extra else []
        found = [path.blocks(group) for group in range(len(self._pools))]
        tables.cached = path.whole * self.block_size + path.extra
        tables.published = path.whole
        tables.tip = path.tip if path.whole else None
        self._pins.read([*found[0], *sources[:1]], tables.cached, now)
        for group, window in enumerate(self.windows):
            self._allocator.share(tables, group, found[group], window.first(tables.cached, path.whole))
        if sources:
            self._allocator.copy(tables, sources)

    def _can_copy(self, path: Path) -> bool:
        """Whether every group still has a block to take once the sequence holds the blocks of the path."""
        return all(
            pool.free or pool.obtainable > sum(map(pool.is_idle, path.blocks(group)))
            for group, pool in enumerate(self._pools)
        )

    def _lacks(self, group: int, swapped: Swapped, found: array[int], end: int) -> bool:
        """Whether a group has too few blocks to bring a sequence back with ``end`` positions, sharing ``found``."""
        pool, first, count = self._pools[group], swapped.first[group], len(swapped.slots[group])
        shared = [block for block in found[first : first + count] if block != ABSENT]
        more = max(0, blocks_for(end, self.block_size) - first - count)
        return count - len(shared) + more > pool.obtainable - sum(map(pool.is_idle, shared))
