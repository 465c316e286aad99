"""Which replicas hold which blocks of keys and values, by their reports.

A block is known by its name, a keyed digest of all tokens up to its end (``engine.kv.names``), so a replica that has
a block's name holds a prefix only if it has those of the blocks before, too. It can use a prefix if in each KV group
with an attention window it has the blocks that the next row reads.

Replicas report names that they added and removed, in numbered events, and all their names when they join or when an
event is missing. Laws:
    1. The index has a name with a replica if the replica's last list and the events since then added it and did not
       remove it, and all events since then arrived.
    2. A replica after a missing event, or with more names than its pool has blocks or MAX_HELD, has none until it
       reports all.
    3. So there are at most as many names as all pools have blocks together.

A name takes at most 128 bytes: 16 of its own in an object of 49, and an entry of the dictionary. Equal sets of replicas
are one integer, bit i for replica i.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from twofold.core.report import EngineFacts
from twofold.engine.kv.block_tables import AttentionWindow
from twofold.engine.kv.names import BlockKeys, of_group
from twofold.engine.kv.radix import TOKEN_BYTES

NAME_BYTES: Final = 16
MAX_HELD: Final = 1 << 19
"""Maximum number of names of a replica, whatever it says of its pool."""
MAX_BLOCKS: Final = 4096
"""Blocks of a prompt that are looked up at most: naming them takes about 10 ms, in which the hub does nothing else."""


@dataclass(slots=True)
class _Holder:
    """A replica: the blocks of its pool, its names in the index, and the number of its last event; None after a
    missing one."""

    pool: int
    held: int = 0
    number: int | None = None


class BlockIndex:
    """The names of blocks, and for each the replicas that hold it."""

    def __init__(self) -> None:
        self._replicas: dict[bytes, int] = {}
        self._sets: dict[int, int] = {}
        self._holders: dict[int, _Holder] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def join(self, replica: int, pool: int) -> None:
        """A replica with ``pool`` blocks joins, and has none until it reports all its names."""
        self.leave(replica)
        self._holders[replica] = _Holder(min(pool, MAX_HELD))

    def leave(self, replica: int) -> None:
        """Forgets a replica that was lost, or that leaves. O(names)."""
        if self._holders.pop(replica, None) is not None:
            self._clear(replica)

    def report_all(self, replica: int, number: int, names: Iterable[bytes], *, more: bool = False) -> bool:
        """A replica reports all its names, as they are after event ``number``; ``more`` of them, after a first part.
        Returns False if they are too many."""
        holder = self._holders[replica]
        if more and holder.number != number:
            return False
        if not more:
            if holder.held:
                self._clear(replica)
            holder.held, holder.number = 0, number
        return self._add(replica, holder, names)

    def report(self, replica: int, number: int, added: Iterable[bytes], removed: Iterable[bytes]) -> bool:
        """Event ``number`` of a replica: it removed blocks, then added others. Events before those known are ignored.

        Returns False if the replica has to report all its names: an event is missing, or it has too many names.
        """
        holder = self._holders[replica]
        if holder.number is None:
            return False
        if number <= holder.number:
            return True
        if number > holder.number + 1:
            self._distrust(replica, holder)
            return False
        holder.number = number
        bit = 1 << replica
        for name in removed:
            held = self._replicas.get(name, 0)
            if held & bit:
                holder.held -= 1
                self._put(name, held ^ bit)
        return self._add(replica, holder, added)

    def matched(self, names: Iterable[bytes], replicas: int) -> list[int]:
        """How many of the first names of a prompt each of the replicas 0 … ``replicas`` − 1 holds."""
        found = [0] * replicas
        held, blocks = (1 << replicas) - 1, 0
        for name in names:
            here = held & self._replicas.get(name, 0)
            self._note(found, held ^ here, blocks)
            held = here
            if not held:
                return found
            blocks += 1
        self._note(found, held, blocks)
        return found

    def check(self) -> None:
        """Asserts law 3 and the counts; O(names · replicas)."""
        for replica, holder in self._holders.items():
            held = sum(1 for each in self._replicas.values() if each >> replica & 1)
            assert held == holder.held <= holder.pool, "names are counted wrongly"
        assert 0 not in self._replicas.values(), "a name without a replica"

    def _add(self, replica: int, holder: _Holder, names: Iterable[bytes]) -> bool:
        bit = 1 << replica
        for name in names:
            held = self._replicas.get(name, 0)
            if held & bit:
                continue
            if holder.held == holder.pool:
                self._distrust(replica, holder)
                return False
            holder.held += 1
            self._put(name, held | bit)
        return True

    def _put(self, name: bytes, replicas: int) -> None:
        if replicas:
            self._replicas[name] = self._sets.setdefault(replicas, replicas)
        else:
            del self._replicas[name]

    def _distrust(self, replica: int, holder: _Holder) -> None:
        self._clear(replica)
        holder.held, holder.number = 0, None

    def _clear(self, replica: int) -> None:
        """Removes a replica from all names, with dictionaries of their own size."""
        keep = ~(1 << replica)
        self._sets = {}
        sets = self._sets
        left = ((name, held & keep) for name, held in self._replicas.items())
        self._replicas = {name: sets.setdefault(held, held) for name, held in left if held}

    @staticmethod
    def _note(found: list[int], replicas: int, blocks: int) -> None:
        while replicas:
            lowest = replicas & -replicas
            found[lowest.bit_length() - 1] = blocks
            replicas ^= lowest


def cached_tokens(blocks: Sequence[int], block_size: int, tokens: int) -> list[int]:
    """Tokens of a prompt of ``tokens`` that the matched blocks save: its last token is always computed."""
    return [min(each * block_size, tokens - 1) for each in blocks]


def windows_of(engine: EngineFacts) -> list[AttentionWindow]:
    """The attention windows of an engine's KV groups."""
    return [AttentionWindow(group.window, engine.attention_chunk, engine.block_size) for group in engine.groups]


class BlockNames:
    """The names of a prompt's blocks. Each is computed when it is first needed."""

    def __init__(self, names: Iterator[bytes]) -> None:
        self._known: list[bytes] = []
        self._rest = names

    def __iter__(self) -> Iterator[bytes]:
        yield from self._known
        for name in self._rest:
            self._known.append(name)
            yield name


class PrefixIndex(BlockIndex):
    """The index of a fleet whose blocks of ``block_size`` tokens are named by ``keys``. ``windows`` are those of the KV
    groups after the first."""

    def __init__(self, keys: BlockKeys, block_size: int, windows: Sequence[AttentionWindow] = ()) -> None:
        super().__init__()
        self._keys, self._block_size, self._windows = keys, block_size, windows

    def names(self, salt: str, tokens: Sequence[int]) -> BlockNames:
        """The names of a prompt's first blocks."""
        text, size = array("i", tokens).tobytes(), self._block_size * TOKEN_BYTES
        return BlockNames(name for _, name, _ in islice(self._keys.names(salt, text, size), MAX_BLOCKS))

    def cached(
        self,
        salt: str,
        tokens: Sequence[int],
        replicas: int,
        names: BlockNames | None = None,
        *,
        usable: bool = True,
    ) -> list[int]:
        """Tokens of a prompt that each of the replicas 0 … ``replicas`` − 1 can use, or else holds in the first group.
        Computes names only as far as one of them has blocks; ``names`` are those of the prompt, if there are some
        already."""
        names = self.names(salt, tokens) if names is None else names
        found = self.matched(names, replicas)
        if usable and self._windows:
            known = list(islice(names, max(found)))
            found = [self._usable(known, replica, blocks) for replica, blocks in enumerate(found)]
        return cached_tokens(found, self._block_size, len(tokens))

    def _usable(self, names: Sequence[bytes], replica: int, blocks: int) -> int:
        """How many of the first ``blocks`` blocks a replica can use. As in a prefix tree, the next number to try is
        that of the last missing block."""
        while blocks:
            hole = -1
            for group, window in enumerate(self._windows, 1):
                read = range(blocks - 1, window.first(blocks * self._block_size, blocks) - 1, -1)
                missing = (at for at in read if not self._replicas.get(of_group(names[at], group), 0) >> replica & 1)
                hole = max(hole, next(missing, -1))
            if hole < 0:
                return blocks
            blocks = hole
        return 0
