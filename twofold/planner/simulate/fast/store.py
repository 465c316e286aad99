"""The KV store of a fast replica, in counts: the rules of ``engine.kv.store`` and ``engine.scheduler.loading``.

A segment is named by the parts of prompts that it and those before it consist of. Its blocks are those of a prompt that
ends with it (``beginning``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from twofold.core.report import StoreCounts
from twofold.engine.kv.segments import SEGMENT_TOKENS, SegmentIndex, StoredSegment
from twofold.engine.kv.store import (
    MAX_SAVES,
    NEW_SHARE,
    SPARE_SHARE,
    LoadRates,
    StoreResult,
    WriteAllowance,
    WriteResult,
)
from twofold.engine.scheduler.loading import StepTimes, computing_s
from twofold.planner.simulate.fast.cache import CountedCache, JobBlocks
from twofold.planner.simulate.fast.decodes import Running
from twofold.planner.simulate.jobs import SimulatedJob, spans
from twofold.planner.simulate.kv_store import SimulatedDisk, SimulatedStore

ROOT: Final = bytes(16)


def beginning(job: SimulatedJob, tokens: int) -> SimulatedJob:
    """A job whose whole prompt is the first ``tokens`` tokens of another one's prompt and completion."""
    pieces, start = [], 0
    for piece in job.pieces:
        if start < tokens:
            pieces.append(replace(piece, tokens=min(piece.tokens, tokens - start)))
        start += piece.tokens
    return job._replace(prompt=tokens, output=0, pieces=tuple(pieces))


def segment_names(job: SimulatedJob, segments: int) -> list[bytes]:
    """The names of the first ``segments`` segments of a job's prompt and completion."""
    parts: list[list[object]] = [[] for _ in range(segments)]
    for name, start, end in spans(job):
        if start == end:
            continue
        for number in range(start // SEGMENT_TOKENS, min(segments, -(-end // SEGMENT_TOKENS))):
            at = number * SEGMENT_TOKENS
            parts[number].append((name, max(start, at) - start, min(end, at + SEGMENT_TOKENS) - start))
    names, before = [], ROOT
    for each in parts:
        before = blake2b(before + repr(each).encode(), digest_size=len(ROOT)).digest()
        names.append(before)
    return names


@dataclass(frozen=True, slots=True)
class _Found:
    """Segments ``first`` … of ``names`` that the store adds to the cache, as ``engine.kv.store.StoredPrefix``."""

    names: list[bytes]
    first: int
    matched: int
    tokens: int


@dataclass(slots=True)
class _CountedLoad:
    job: SimulatedJob
    names: list[bytes]
    blocks: JobBlocks
    alone: bool
    waiting: list[Running] = field(default_factory=list)


class CountedStore:
    """The store of one replica with the blocks of ``cache``; ``times`` predicts the seconds of computing."""

    def __init__(self, lever: SimulatedStore, cache: CountedCache, times: StepTimes) -> None:
        self._cache, self._times = cache, times
        self._index = SegmentIndex(lever.budget)
        self._disk = SimulatedDisk(lever.byte_s)
        self._blocks = SEGMENT_TOKENS // cache.block_size
        self._payload = self._blocks * sum(lever.block_bytes)
        self._size = lever.segment_bytes(cache.block_size)
        self._rates = LoadRates()
        self._allowance = WriteAllowance(NEW_SHARE * lever.budget)
        self._loads: dict[int, _CountedLoad] = {}
        self._saves: dict[int, tuple[list[bytes], int]] = {}
        self._gained: dict[int, tuple[int, int]] = {}
        self._number = 0
        self._counts = StoreCounts()

    @property
    def counts(self) -> StoreCounts:
        """The counts as they are now."""
        return replace(self._counts, bytes=self._index.bytes, segments=len(self._index))

    @property
    def next_s(self) -> float:
        """When the next load or save ends."""
        return self._disk.next_s

    def begin(self, head: Running, now: float, *, alone: bool, lasts: Callable[[], bool]) -> bool:
        """Begins to load the prefix of the head of the queue if that pays and its blocks will last; ``alone``: nothing
        runs. False, with nothing changed, if it is to be computed."""
        found = self._find(head, alone=alone)
        if found is None or not lasts():
            return False
        load = next((load for load in self._loads.values() if found.names[-1] in load.names), None)
        if load is None:
            load = self._load(head.job, found, now, alone=alone)
        if load is None:
            return False
        load.waiting.append(head)
        self._gained[head.job.number] = found.matched, found.tokens
        return True

    def admit(self, running: Running, cached: int) -> int:
        """How many of the cached tokens of an admitted job came from the store."""
        matched, upto = self._gained.pop(running.job.number, (0, 0))
        return 0 if running.preemptions else max(0, min(cached, upto) - matched)

    def hit(self, running: Running, cached: int, now: float) -> None:
        """A job found ``cached`` tokens: their segments are used now, and written unless the store has them."""
        count = min(-(-cached // SEGMENT_TOKENS), running.known // SEGMENT_TOKENS)
        if not count:
            return
        self._save(running.job, count * SEGMENT_TOKENS, now)

    def ended(self, running: Running, computed: int, now: float) -> None:
        """A job has ended that computed so many tokens: those that it did not find are written, as far as the allowance
        goes."""
        if computed // SEGMENT_TOKENS > running.cached // SEGMENT_TOKENS:
            self._save(running.job, computed // SEGMENT_TOKENS * SEGMENT_TOKENS, now, new=True)

    def _save(self, job: SimulatedJob, tokens: int, now: float, *, new: bool = False) -> None:
        """Writes what the cache has of a job's first ``tokens`` tokens and the store has not."""
        kept, idle = self._cache.find(beginning(job, tokens), tokens)
        names = segment_names(job, kept // SEGMENT_TOKENS)
        have = self._leading(names)
        self._index.touch(names[:have])
        saving = {name for names, _ in self._saves.values() for name in names}
        if have == len(names) or names[have] in saving or len(self._saves) >= MAX_SAVES:
            return
        if idle > self._cache.obtainable - SPARE_SHARE * self._cache.total:
            return
        end = self._fit(names, have, now, self._allowance.left(now) if new else math.inf)
        if new:
            self._allowance.spend((end - have) * self._size)
        if end > have:
            self._number += 1
            self._saves[self._number] = names[:end], have
            self._disk.write(self._number, end - have, now)

    def take(self, now: float) -> Iterator[Running]:
        """Takes what was read and written up to ``now``; the jobs that waited for it."""
        for result in self._disk.take(now):
            yield from self._finish(result)

    def check(self) -> None:
        """Asserts that nothing is under way, and the laws of the index."""
        assert not self._loads, "a load was not ended"
        assert not self._saves, "a save was not ended"
        assert not self._gained, "a job was not admitted"
        self._index.check()

    def _find(self, head: Running, *, alone: bool) -> _Found | None:
        number, most = head.job.number, head.known - 1
        if number in self._gained:
            return None
        found = self._beyond(head.job, head.known, most) if len(self._index) else None
        if found is not None:
            load_s = (len(found.names) - found.first) * self._size / self._rates.of(alone)
            compute_s = computing_s(self._times, found.matched, found.tokens)
            if compute_s is not None and load_s >= compute_s:
                self._rates.forgive(alone)
                self._counts.declined += 1
                found = None
        if found is None:
            self._gained[number] = 0, 0
        return found

    def _beyond(self, job: SimulatedJob, known: int, most: int) -> _Found | None:
        """What the store adds to the cache for the first ``most`` tokens of a job."""
        count = min(known, -(-most // SEGMENT_TOKENS) * SEGMENT_TOKENS) // SEGMENT_TOKENS
        names = segment_names(job, count)
        names = names[: self._leading(names)]
        tokens = min(most, len(names) * SEGMENT_TOKENS)
        matched = self._cache.find(job, most)[0] if tokens else 0
        return _Found(names, matched // SEGMENT_TOKENS, matched, tokens) if tokens > matched else None

    def _load(self, job: SimulatedJob, found: _Found, now: float, *, alone: bool) -> _CountedLoad | None:
        """Takes blocks and begins to fill them; None if there are too few."""
        kept, segments = beginning(job, found.first * SEGMENT_TOKENS), len(found.names) - found.first
        _, idle = self._cache.find(kept, kept.prompt)
        if segments * self._blocks + idle > self._cache.obtainable:
            return None
        blocks, _ = self._cache.open(kept, kept.prompt)
        self._cache.take(blocks, segments * self._blocks)
        self._number += 1
        load = _CountedLoad(beginning(job, len(found.names) * SEGMENT_TOKENS), found.names, blocks, alone)
        self._loads[self._number] = load
        self._disk.read(self._number, segments, segments * self._payload, now)
        self._counts.loads += 1
        return load

    def _leading(self, names: list[bytes]) -> int:
        """How many of the first segments the store has."""
        return next((place for place, name in enumerate(names) if name not in self._index), len(names))

    def _fit(self, names: list[bytes], have: int, now: float, most: float) -> int:
        """The end of those segments from ``have`` on that have at most ``most`` bytes and can be held; others are
        evicted for them."""
        under_way = sum(len(names) - first for names, first in self._saves.values())
        held = {name for names, first in self._saves.values() for name in names[:first]}
        held.update(names[:have], *(load.names for load in self._loads.values()))
        for end in range(len(names), have, -1):
            if (end - have) * self._size > most:
                continue
            gone = self._index.make_room((under_way + end - have) * self._size, now, held)
            if gone is not None:
                self._counts.evicted += len(gone)
                return end
        return have

    def _finish(self, result: StoreResult) -> list[Running]:
        if isinstance(result, WriteResult):
            self._finish_save(*self._saves.pop(result.number))
            return []
        load = self._loads.pop(result.number)
        self._cache.fill(load.blocks, load.job)
        self._counts.loaded += result.good * SEGMENT_TOKENS
        self._counts.load_s += result.seconds
        self._rates.learn(load.alone, result.nbytes / result.seconds)
        return load.waiting

    def _finish_save(self, names: list[bytes], first: int) -> None:
        for place in range(first, len(names)):
            if names[place] in self._index or (place and names[place - 1] not in self._index):
                continue
            parent = names[place - 1] if place else ROOT
            self._index.add(StoredSegment(names[place], parent, self._size, (0,)), reversed(names[:place]))
            self._counts.written += 1
