"""The threads that read and write the segments of a KV store.

While sequences run, one thread reads, for BESIDE_SHARE of a core's time: steps share cores and memory with it, and none
should be much longer than others. Otherwise several read. They have the priority of the process: at a lower one they
stop while other threads compute, at any place and for any time.

A segment is read into a buffer, digested there, and copied into the blocks of the cache that were taken for it, which
no step reads before the whole load is published. A segment is written from such a buffer to a file of its own, which is
then renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Final

from twofold.engine.kv.segments import SegmentGroup, SegmentHeader, header_bytes
from twofold.engine.kv.store import (
    DeleteJob,
    ReadJob,
    ReadResult,
    SegmentBlocks,
    StoreJob,
    StoreResult,
    TouchJob,
    WriteJob,
    WriteResult,
)
from twofold.engine.kv_folder import STAGED, StoreFolder, segment_files, warn
from twofold.engine.kv_mac import PayloadMac
from twofold.host.paths import open_own
from twofold.models.ops import BlockMemory

log = logging.getLogger("twofold.kv_store")

NICE: Final = 19
MAX_READERS: Final = 4
PIECE_BYTES: Final = 1 << 18
"""Bytes that are read and then digested while they are in the processor's cache."""
BESIDE_SHARE: Final = 0.1
"""Share of a core's time for reading beside running sequences; the thread sleeps between pieces."""
PROBE_S: Final = 0.02
"""Longest time for which a segment is read when a store is opened, to know the rate of loads."""


class KVFiles:
    """Reads and writes the segments of a folder on threads of its own, which call ``wake`` after each result."""

    def __init__(self, folder: StoreFolder, memory: BlockMemory) -> None:
        self._folder = folder
        self._memory = memory
        self.wake: Callable[[], object] = lambda: None
        self._results: deque[StoreResult] = deque()
        self._changed = threading.Condition()
        self._warned = False
        threads = min(os.cpu_count() or 1, MAX_READERS)
        self._readers = ThreadPoolExecutor(threads, "twofold-kv-read")
        self._reader = ThreadPoolExecutor(1, "twofold-kv-read-beside")
        self._writer = ThreadPoolExecutor(1, "twofold-kv-write", initializer=_yield_cores)

    def prepare(self, work: Callable[[], object]) -> None:
        """Does some work on a thread of low priority."""
        self._writer.submit(work)

    def submit(self, jobs: Iterable[StoreJob]) -> None:
        """Begins jobs; those that read and write have a result."""
        for job in jobs:
            if isinstance(job, ReadJob):
                read = partial(self._read, share=1.0 if job.alone else BESIDE_SHARE)
                _Reading(job, read, self._done).begin(self._readers if job.alone else self._reader)
            else:
                self._writer.submit(self._write, job)

    def take(self) -> list[StoreResult]:
        """The results since the last call."""
        return [self._results.popleft() for _ in range(len(self._results))]

    def wait(self) -> list[StoreResult]:
        """The results since the last call, of which there is at least one; waits for it."""
        with self._changed:
            while not self._results:
                self._changed.wait()
        return self.take()

    def close(self) -> None:
        """Waits for the jobs that were begun, and ends the threads."""
        self._readers.shutdown()
        self._reader.shutdown()
        self._writer.shutdown()

    def _done(self, result: StoreResult) -> None:
        with self._changed:
            self._results.append(result)
            self._changed.notify_all()
        self.wake()

    def _read(self, part: SegmentBlocks, buffers: Buffers, share: float) -> int | None:
        """Fills the blocks of a segment with a share of a core's time; the bytes that were read, or None if it cannot
        be accepted. Raises OSError."""
        wanted, keys = part.header, self._folder.keys
        try:
            descriptor = open_own(self._folder.file(wanted.name), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            header = SegmentHeader.read(os.pread(descriptor, header_bytes(len(wanted.groups)), 0), keys)
            if header is None or header.without_macs() != wanted or os.fstat(descriptor).st_size != header.file_bytes:
                return None
            at, total = header_bytes(len(header.groups)), 0
            for number, (group, blocks) in enumerate(zip(header.groups, part.blocks, strict=True)):
                if blocks:
                    mac = self._folder.mac(header.name, number)
                    with buffers.take(len(blocks) * group.block_bytes) as content:
                        if not _read_into(descriptor, content, at, mac, share):
                            return None
                        if not hmac.compare_digest(mac.digest(), group.mac):
                            return None
                        began = time.thread_time()
                        self._memory.write_blocks(number, blocks, content)
                        _pause(began, share)
                        total += content.nbytes
                at += (header.blocks - group.skip) * group.block_bytes
            return total
        finally:
            os.close(descriptor)

    def _write(self, job: WriteJob | DeleteJob | TouchJob) -> None:
        if isinstance(job, WriteJob):
            written, error, buffers = 0, "", Buffers()
            try:
                for part in job.segments:
                    self._write_segment(part, buffers)
                    written += 1
            except Exception as failure:  # the blocks must be released, whatever happened
                error = getattr(failure, "strerror", None) or repr(failure)
                if not self._warned:
                    self._warned = True
                    warn(self._folder.path.parent, error)
            self._done(WriteResult(job.number, written, error))
            return
        for place, name in enumerate(job.names):
            with suppress(OSError):
                if isinstance(job, DeleteJob):
                    self._folder.file(name).unlink()
                else:
                    _set_use(self._folder.file(name), job.ahead_s, place)

    def _write_segment(self, part: SegmentBlocks, buffers: Buffers) -> None:
        """Writes a segment to a file of its own, then gives it its name. Raises OSError, and leaves nothing then."""
        if not self._folder.writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        name, groups = part.header.name, list[SegmentGroup]()
        draft = self._folder.path / f"{STAGED}{name.hex()}"
        try:
            descriptor = open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                at = header_bytes(len(part.header.groups))
                for number, (group, blocks) in enumerate(zip(part.header.groups, part.blocks, strict=True)):
                    mac = self._folder.mac(name, number)
                    if blocks:
                        with buffers.take(len(blocks) * group.block_bytes) as content:
                            self._memory.read_blocks(number, blocks, content)
                            mac.update(content)
                            _write_from(descriptor, content, at)
                            at += content.nbytes
                    groups.append(replace(group, mac=mac.digest()))
                header = replace(part.header, groups=tuple(groups))
                _write_from(descriptor, memoryview(header.pack(self._folder.keys)), 0)
            finally:
                os.close(descriptor)
            _set_use(draft, 0.0, header.place)
            draft.rename(self._folder.file(name))
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise


class Buffers:
    """The buffers of a job: each holds the blocks of a group of a segment, and is used again for others."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    @contextmanager
    def take(self, size: int) -> Iterator[memoryview]:
        """A buffer of ``size`` bytes. Any thread may take one."""
        try:
            made = self._free.pop()
        except IndexError:
            made = bytearray()
        if len(made) < size:
            made = bytearray(size)
        yield memoryview(made)[:size]
        self._free.append(made)


class _Reading:
    """One ReadJob, its segments on several threads."""

    def __init__(
        self, job: ReadJob, read: Callable[[SegmentBlocks, Buffers], int | None], done: Callable[[ReadResult], None]
    ) -> None:
        self._job = job
        self._buffers = Buffers()
        self._read = read
        self._done = done
        self._left = len(job.segments)
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._sizes: list[int | Exception | None] = [None] * self._left

    def begin(self, threads: ThreadPoolExecutor) -> None:
        for place in range(len(self._job.segments)):
            threads.submit(self._fill, place)

    def _fill(self, place: int) -> None:
        try:
            self._sizes[place] = self._read(self._job.segments[place], self._buffers)
        except Exception as error:  # the load must end, whatever happened
            log.warning("a segment of the KV store cannot be read: %r", error)
            self._sizes[place] = error
        with self._lock:
            self._left -= 1
            if self._left:
                return
        good = sum(1 for _ in takewhile(lambda size: isinstance(size, int), self._sizes))
        bad = good < len(self._sizes) and self._sizes[good] is None
        total = sum(size for size in self._sizes if isinstance(size, int))
        self._done(ReadResult(self._job.number, good, total, time.perf_counter() - self._began, bad))


def _read_into(descriptor: int, content: memoryview, at: int, mac: PayloadMac, share: float) -> bool:
    """Fills ``content`` from a place in a file, and gives each piece to ``mac`` then; False if the file ends before."""
    for start in range(0, content.nbytes, PIECE_BYTES):
        began, piece = time.thread_time(), content[start : start + PIECE_BYTES]
        done = 0
        while done < piece.nbytes:
            count = os.preadv(descriptor, [piece[done:]], at + start + done)
            if not count:
                return False
            done += count
        mac.update(piece)
        _pause(began, share)
    return True


def _pause(began: float, share: float) -> None:
    """Sleeps until the thread has used its share of a core's time since ``began``."""
    if share < 1.0:
        time.sleep((time.thread_time() - began) * (1.0 / share - 1.0))


def read_rate(folder: StoreFolder, clock: Callable[[], float] = time.perf_counter) -> float | None:
    """Bytes per second of reading and digesting the segment that was used last, for PROBE_S and a piece at most. None
    if there is none of at least a piece."""
    latest = max(segment_files(folder.path), key=itemgetter(2), default=None)
    if latest is None or latest[1] < PIECE_BYTES:
        return None
    view, total, seconds = memoryview(bytearray(PIECE_BYTES)), 0, 0.0
    mac, began = folder.mac(latest[0], 0), clock()
    with suppress(OSError), folder.file(latest[0]).open("rb", buffering=0) as file:
        while seconds < PROBE_S and (count := file.readinto(view)):
            mac.update(view[:count])
            total, seconds = total + count, clock() - began
    return total / seconds if seconds > 0 else None


def _write_from(descriptor: int, content: memoryview, at: int) -> None:
    while content:
        count = os.pwrite(descriptor, content, at)
        content, at = content[count:], at + count


def _set_use(path: Path, ahead_s: float, place: int) -> None:
    """Notes the use of a segment; its parent was used a nanosecond later."""
    used = time.time_ns() + int(ahead_s * 1e9) - place
    os.utime(path, ns=(used, used))


def _yield_cores() -> None:
    """Lowers the priority of this thread, on systems where threads have one each."""
    if hasattr(os, "setpriority") and sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
