"""The KV store: prefixes of prompts on the disk, beside the prefix tree. Bookkeeping only, deterministic, no I/O.

    load    ``find`` says what the disk has beyond the tree, ``load`` takes blocks for it; when they are filled,
            ``finish`` publishes them in the tree. So a load touches no sequence: it extends the prefix cache.
    save    segments that a prompt has hit, that a pin covers, of sequences that have ended, as far as the
            ``WriteAllowance`` goes, and at the end all others, as far as the budget goes

Threads of ``engine.kv_files`` run the jobs, and the loop takes the results between two steps. Block tables hold the
blocks of a job until its result arrives, even if the request has ended: no block is evicted while a thread uses it.

A segment that cannot be accepted is dropped with all that follow it, counted, and computed again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from twofold.core.report import StoreCounts
from twofold.core.request import STORED_TTL, TTL_SECONDS
from twofold.engine.kv.block_tables import BlockTables
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.segments import (
    SEGMENT_TOKENS,
    SegmentGroup,
    SegmentHeader,
    SegmentIndex,
    StoredSegment,
    StoreKeys,
)

MAX_SAVES: Final = 4
"""Saves under way at once; what a further hit would save is saved at the next one."""
SPARE_SHARE: Final = 0.25
"""A save begins only if this share of each pool stays obtainable for sequences while it holds its blocks."""
PIN_S: Final = TTL_SECONDS[STORED_TTL]
"""Seconds for which a pinned chain stays after its last use."""
NEW_SHARE: Final = 0.5
"""In a day, prompts that no other has hit yet are written for at most this share of the budget. So they cannot push out
all that is in use, and a disk is not worn by what never returns."""
DAY_S: Final = 86_400.0
PAUSE_S: Final = 60.0
"""Nothing is written for this long after a write has failed."""
FIRST_RATE: Final = 5e8
"""Bytes per second of a load until one is measured, and where predictions return to if loads do not pay."""
RATE_WEIGHT: Final = 0.5
"""Weight of the last load in the mean that predicts the next."""


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """A segment to be read or written: its header, and for each group the blocks after the absent ones; a group that is
    not needed has none. When it is read, the MACs of the header's groups are not known yet."""

    header: SegmentHeader
    blocks: tuple[array[int], ...]


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Fill blocks from the segments of a chain, in order; ``alone``: no sequence ran when it began."""

    number: int
    segments: tuple[SegmentBlocks, ...]
    alone: bool


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Write the segments of a chain, in order, until one fails."""

    number: int
    segments: tuple[SegmentBlocks, ...]


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Remove files, in order."""

    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TouchJob:
    """Note the use of a chain, root's child first: now, or ``ahead_s`` later for a pinned one."""

    names: tuple[bytes, ...]
    ahead_s: float = 0.0


StoreJob = ReadJob | WriteJob | DeleteJob | TouchJob


@dataclass(frozen=True, slots=True)
class ReadResult:
    """``good`` segments were filled, of ``nbytes`` bytes, in ``seconds``. ``bad``: the next one is damaged or missing;
    otherwise it could not be read this time, if there is a next one."""

    number: int
    good: int
    nbytes: int
    seconds: float
    bad: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    """``written`` segments are on the disk; ``error`` says why the next one is not."""

    number: int
    written: int
    error: str = ""


StoreResult = ReadResult | WriteResult


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What the store has of a prompt beyond the tree: its segments number ``first`` … ``end`` − 1, of ``nbytes`` bytes.

    ``firsts`` is for each group the first block that a row after them reads. The tree has ``matched`` tokens, with
    the store ``tokens`` of them are cached.
    """

    salt: str
    text: array[int]
    first: int
    end: int
    firsts: tuple[int, ...]
    nbytes: int
    matched: int
    tokens: int


@dataclass(slots=True)
class _Load:
    prefix: StoredPrefix
    tables: BlockTables
    names: list[bytes]
    alone: bool


@dataclass(slots=True)
class _Save:
    tables: BlockTables
    ancestors: list[bytes]
    segments: tuple[StoredSegment, ...]
    pinned: bool


@dataclass(slots=True)
class LoadRates:
    """Bytes per second of loads, while nothing else ran (True) and beside running sequences (False); ``first`` before
    one ended."""

    first: float = FIRST_RATE
    known: dict[bool, float] = field(default_factory=dict)

    def of(self, alone: bool) -> float:
        return self.known.get(alone, self.first)

    def learn(self, alone: bool, rate: float) -> None:
        self.known[alone] = rate if alone not in self.known else self.of(alone) + RATE_WEIGHT * (rate - self.of(alone))

    def forgive(self, alone: bool) -> None:
        """After a load was not worth it: a rate below FIRST_RATE comes nearer to it, so that loads are tried again. One
        above it was measured, and stays."""
        rate = self.of(alone)
        if rate < FIRST_RATE:
            self.known[alone] = rate + 0.02 * (FIRST_RATE - rate)


class WriteAllowance:
    """Bytes that may be written of prompts that no other has hit yet: ``most`` in DAY_S seconds."""

    def __init__(self, most: float) -> None:
        self._most = self._left = most
        self._at = 0.0

    def left(self, now: float) -> float:
        """What may be written now."""
        self._left = min(self._most, self._left + max(now - self._at, 0.0) * self._most / DAY_S)
        self._at = now
        return self._left

    def spend(self, size: int) -> None:
        self._left -= size


class KVStore:
    """The store of one engine. ``block_bytes`` are the bytes of a block of each group, ``first_rate`` the bytes per
    second that a load is expected to reach before one has ended."""

    def __init__(
        self,
        manager: BlockManager,
        keys: StoreKeys,
        index: SegmentIndex,
        block_bytes: Sequence[int],
        first_rate: float = FIRST_RATE,
    ) -> None:
        self._manager = manager
        self._keys = keys
        self._index = index
        self._block_bytes = tuple(block_bytes)
        self._blocks = SEGMENT_TOKENS // manager.block_size
        self._rates = LoadRates(first_rate)
        self._allowance = WriteAllowance(NEW_SHARE * index.budget)
        self._loads: dict[int, _Load] = {}
        self._saves: dict[int, _Save] = {}
        self._number = 0
        self._jobs: list[StoreJob] = []
        self._paused_until = 0.0
        self._final: set[bytes] = set()
        self.counts = StoreCounts()

    @property
    def busy(self) -> bool:
        """Whether a job has no result yet."""
        return bool(self._loads or self._saves)

    def take_jobs(self) -> list[StoreJob]:
        """The jobs since the last call, in order. Blocks of a ReadJob may be filled once all moves recorded before are
        done."""
        jobs, self._jobs = self._jobs, []
        return jobs

    # -- loads --------------------------------------------------------------------------------------------------------

    def find(self, tokens: array[int], salt: str, most: int) -> StoredPrefix | None:
        """What the store adds to the tree for the first ``most`` tokens of a prompt; None if nothing."""
        count = min(len(tokens), -(-most // SEGMENT_TOKENS) * SEGMENT_TOKENS) // SEGMENT_TOKENS
        if not count:
            return None
        segments: list[StoredSegment] = []
        for _, name, _ in self._keys.chain(salt, tokens[: count * SEGMENT_TOKENS].tobytes()):
            segment = self._index.get(name)
            if segment is None:
                break
            segments.append(segment)
        matched = min(self._manager.matched(tokens, salt), most)
        if min(most, len(segments) * SEGMENT_TOKENS) <= matched:
            return None
        first = matched // SEGMENT_TOKENS
        for end in range(len(segments), first, -1):
            firsts = self._firsts(segments, first, end)
            if firsts is not None:
                text = tokens[: end * SEGMENT_TOKENS]
                size = sum(segment.size for segment in segments[first:end])
                return StoredPrefix(salt, text, first, end, firsts, size, matched, min(most, len(text)))
        return None

    def load_s(self, prefix: StoredPrefix, *, alone: bool) -> float:
        """Predicted seconds of a load, while nothing else runs or beside running sequences."""
        return prefix.nbytes / self._rates.of(alone)

    def decline(self, *, alone: bool) -> None:
        """Counts a load that would have taken longer than computing."""
        self._rates.forgive(alone)
        self.counts.declined += 1

    def under_way(self, prefix: StoredPrefix) -> int | None:
        """The number of the running load that reads this prefix; None if no load reads it."""
        for number, load in self._loads.items():
            if load.prefix.salt == prefix.salt and load.prefix.text[: len(prefix.text)] == prefix.text:
                return number
        return None

    def load(self, prefix: StoredPrefix, now: float, *, alone: bool) -> int | None:
        """Takes blocks and begins to fill them; the number of the load, or None if there are too few blocks."""
        keep, end = prefix.first * self._blocks, prefix.end * self._blocks
        tables = self._manager.reserve(prefix.text, prefix.salt, keep, end, prefix.firsts, now)
        if tables is None:
            return None
        number = self._next()
        names, parts = [], []
        for place, (parent, name, tokens) in enumerate(self._keys.chain(prefix.salt, prefix.text.tobytes())):
            names.append(name)
            if place < prefix.first:
                continue
            segment = self._index.get(name)
            assert segment is not None, "it was found just now"
            groups = tuple(map(SegmentGroup, segment.skip, self._block_bytes))
            header = SegmentHeader(place, self._keys.identity, name, parent, tokens, self._blocks, groups)
            start = place * self._blocks
            blocks = tuple(
                table[start + skip if first < start + self._blocks else len(table) : start + self._blocks]
                for table, skip, first in zip(tables.blocks, segment.skip, tables.first, strict=True)
            )
            parts.append(SegmentBlocks(header, blocks))
        self._loads[number] = _Load(prefix, tables, names, alone)
        self._jobs.append(ReadJob(number, tuple(parts), alone))
        return number

    def _firsts(self, segments: Sequence[StoredSegment], first: int, end: int) -> tuple[int, ...] | None:
        """For each group the first block that a row after segment ``end`` − 1 reads, or the first of the segment in
        which it lies; None if the segments ``first`` … ``end`` − 1 lack a block after it."""
        firsts = []
        whole = end * self._blocks
        for group, window in enumerate(self._manager.windows):
            needed = min(window.first(whole * self._manager.block_size), whole - 1)
            begin = max(needed // self._blocks, first)
            start = begin * self._blocks + segments[begin].skip[group]
            if start > max(needed, begin * self._blocks) or any(s.skip[group] for s in segments[begin + 1 : end]):
                return None
            firsts.append(min(start, needed) if begin == first else start)
        return tuple(firsts)

    # -- saves --------------------------------------------------------------------------------------------------------

    def hit(self, tokens: array[int], salt: str, cached: int, now: float) -> None:
        """A prompt found ``cached`` tokens: their segments are used now, and written unless the store has them."""
        count = min(-(-cached // SEGMENT_TOKENS), len(tokens) // SEGMENT_TOKENS)
        if count:
            self.save(tokens[: count * SEGMENT_TOKENS], salt, now)

    def ended(self, tokens: array[int], salt: str, cached: int, now: float) -> None:
        """A sequence has ended that computed ``tokens`` and found ``cached`` of them: whole segments after these are
        written, as far as the allowance goes."""
        if len(tokens) // SEGMENT_TOKENS > cached // SEGMENT_TOKENS:
            self.save(tokens, salt, now, new=True)

    def save_all(self, now: float) -> Iterator[None]:
        """Saves what the tree has, the most recently used first, as far as the budget goes. Each turn begins one save,
        whose result the caller waits for. To be called when no sequence runs any more."""
        for salt, text in self._manager.texts(SEGMENT_TOKENS):
            self.save(text, salt, now, last=True)
            yield
            self._final.update(name for _, name, _ in self._keys.chain(salt, text.tobytes()))

    def save(
        self,
        text: array[int],
        salt: str,
        now: float,
        *,
        pinned: bool = False,
        new: bool = False,
        last: bool = False,
    ) -> bool:
        """Writes the whole segments of a text that the tree has and the store has not, and pins them all if
        ``pinned``; False if the whole text cannot be kept now. ``new``: no other prompt has hit it. ``last``: no
        sequence needs blocks any more."""
        whole = self._manager.kept(text, salt)[0] // self._blocks
        chain = list(self._keys.chain(salt, text[: whole * SEGMENT_TOKENS].tobytes()))
        names = [name for _, name, _ in chain]
        have = next((i for i, name in enumerate(names) if name not in self._index), len(names))
        self._touch(names[:have], now, pinned=pinned)
        complete = whole * SEGMENT_TOKENS == len(text)
        if have == len(chain):
            return complete
        for save in self._saves.values():
            if any(segment.name == names[have] for segment in save.segments):
                save.pinned |= pinned
                return complete and save.segments[-1].name == names[-1]
        if now < self._paused_until or len(self._saves) >= MAX_SAVES:
            return False
        spare = 0.0 if last else SPARE_SHARE
        most = self._allowance.left(now) if new else math.inf
        size = self._begin_save(text, salt, chain, have, now, pinned, spare, most)
        if new:
            self._allowance.spend(size)
        return size > 0 and complete

    def _begin_save(
        self,
        text: array[int],
        salt: str,
        chain: Sequence[tuple[bytes, bytes, bytes]],
        have: int,
        now: float,
        pinned: bool,
        spare: float,
        most: float,
    ) -> int:
        """Begins to write segments of at most ``most`` bytes in all; their bytes."""
        end = len(chain) * self._blocks
        text = text[: len(chain) * SEGMENT_TOKENS]
        firsts = self._manager.kept(text, salt)[1]
        tables = self._manager.reserve(text, salt, end, end, firsts, now, spare=spare)
        if tables is None:
            return 0
        names = [name for _, name, _ in chain]
        parts: list[SegmentBlocks] = []
        entries: list[StoredSegment] = []
        for place in range(have, len(chain)):
            parent, name, tokens = chain[place]
            start = place * self._blocks
            skips = [min(max(first - start, 0), self._blocks) for first in tables.first]
            blocks = tuple(
                table[start + skip : start + self._blocks] for table, skip in zip(tables.blocks, skips, strict=True)
            )
            groups = tuple(map(SegmentGroup, skips, self._block_bytes))
            header = SegmentHeader(place, self._keys.identity, name, parent, tokens, self._blocks, groups)
            parts.append(SegmentBlocks(header, blocks))
            entries.append(StoredSegment(name, parent, header.file_bytes, tuple(skips)))
        count = self._fit(entries, names[:have], now, most)
        entries, parts = entries[:count], parts[:count]
        if not entries:
            self._manager.close(tables, now)
            return 0
        number = self._next()
        self._saves[number] = _Save(tables, names[:have], tuple(entries), pinned)
        self._jobs.append(WriteJob(number, tuple(parts)))
        return sum(segment.size for segment in entries)

    def _fit(self, entries: Sequence[StoredSegment], keep: Sequence[bytes], now: float, most: float) -> int:
        """How many of the segments have at most ``most`` bytes, and can be held; others are evicted for them."""
        under_way = sum(segment.size for save in self._saves.values() for segment in save.segments)
        held = {name for save in self._saves.values() for name in save.ancestors}
        held.update(self._final, *(load.names for load in self._loads.values()))
        for count in range(len(entries), 0, -1):
            size = sum(segment.size for segment in entries[:count])
            gone = None if size > most else self._index.make_room(under_way + size, now, held.union(keep))
            if gone is not None:
                self._delete(gone)
                self.counts.evicted += len(gone)
                return count
        return 0

    # -- results ------------------------------------------------------------------------------------------------------

    def finish(self, result: StoreResult, now: float) -> int | None:
        """Takes the result of a job: publishes what was loaded, or enters what was written. The number of the load,
        None for a save."""
        if isinstance(result, WriteResult):
            self._finish_save(result, now)
            return None
        load = self._loads.pop(result.number)
        prefix = load.prefix
        end = prefix.first + result.good
        if result.good:
            self._manager.publish(load.tables, prefix.text, end * SEGMENT_TOKENS, now)
            self.counts.loads += 1
            self.counts.loaded += result.good * SEGMENT_TOKENS
        self._manager.close(load.tables, now)
        if result.seconds > 0 and result.nbytes:
            self._rates.learn(load.alone, result.nbytes / result.seconds)
            self.counts.load_s += result.seconds
        if end < prefix.end:
            self.counts.bad += result.bad
            self.counts.failed_reads += not result.bad
            if result.bad:
                self._delete(self._index.drop(load.names[end]))
        return result.number

    def _finish_save(self, result: WriteResult, now: float) -> None:
        save = self._saves.pop(result.number)
        self._manager.close(save.tables, now)
        chain = list(save.ancestors)
        for segment in save.segments[: result.written]:
            if segment.name in self._index:
                chain.append(segment.name)
                continue
            if chain and chain[-1] not in self._index:  # an ancestor was damaged or evicted meanwhile
                self._delete([segment.name])
                continue
            self._index.add(segment, reversed(chain))
            chain.append(segment.name)
            self.counts.written += 1
        if save.pinned and all(name in self._index for name in chain):
            self._touch(chain, now, pinned=True)
        if result.error:
            self._paused_until = now + PAUSE_S
            self.counts.failed_writes += 1

    def _touch(self, chain: Sequence[bytes], now: float, *, pinned: bool = False) -> None:
        if not chain:
            return
        self._index.touch(chain)
        count = len(chain) if pinned else sum(1 for name in chain if self._index.pinned(name, now))
        if count and not self._index.pin(chain[:count], now + PIN_S, now):
            count = 0
        self._jobs += [TouchJob(tuple(chain[count:])), TouchJob(tuple(chain[:count]), PIN_S)]

    def _delete(self, names: Sequence[bytes]) -> None:
        if names:
            self._jobs.append(DeleteJob(tuple(names)))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def snapshot(self) -> StoreCounts:
        """The counts as they are now."""
        return replace(self.counts, bytes=self._index.bytes, segments=len(self._index))

    def check(self) -> None:
        """Asserts the laws of the index."""
        self._index.check()
