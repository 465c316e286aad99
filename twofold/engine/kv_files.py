"""The files of a KV store, and the threads that read and write them.

    DIR/secret                 32 random bytes, the key of all names and MACs
    DIR/IDENTITY/NAME.kv       a segment (``kv.segments``); its time of modification is that of its last use, or later
                               if it is pinned: the end of the pin
    DIR/IDENTITY/.writing-*    a segment that is being written; removed at the next start if its writer was killed
    DIR/IDENTITY/lock          locked by the process that serves the model from this store
    DIR/IDENTITY/model         the model's name, for people

A segment is written to a file of its own and then renamed, so a reader sees all of it or nothing. Nothing waits for the
disk: after a loss of power a file may have lost its contents; its MAC says so, and it is computed again. Keys and
values steer a model as a prompt does, hence the secret, and hence folders that only their owner can write.

The threads run at the lowest priority: they take the cores that no step uses. They read a segment straight into the
blocks of the cache that were taken for it, which no step reads before the whole load is checked and published.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from twofold.core.errors import ParameterError, ResourceError
from twofold.engine.kv.segments import (
    NAME_BYTES,
    SegmentHeader,
    SegmentIndex,
    StoredSegment,
    StoreKeys,
    header_bytes,
)
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
from twofold.host.paths import write_whole

log = logging.getLogger("twofold.kv_store")

SUFFIX: Final = ".kv"
STAGED: Final = ".writing-"
NICE: Final = 19
MAX_VECTORS: Final = 512
"""Buffers of one system call; Linux allows 1024."""
MAX_READERS: Final = 4
MAX_GROUPS: Final = 16
"""More KV groups than any model has."""
IDENTITY_CHARS: Final = 32
BlockBytes = Callable[[int, int], Sequence[memoryview]]
"""The bytes of a block of a group, layer by layer (``ModelRunner.block_bytes``)."""


def secure_folder(path: Path) -> None:
    """Creates a folder for its owner only. Raises ParameterError if others can write to it, or if it is no folder, and
    OSError if it cannot be created."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022:
        raise ParameterError(
            f"The KV store {path} can be written by other users, who could change what the model answers.",
            param="kv_store",
            hint=f"Run: chmod 700 {path} (or choose another folder with --kv-store).",
        )


def read_secret(folder: Path) -> bytes:
    """The secret of a store, which is made with its first use. Raises OSError."""
    path = folder / "secret"
    with suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) == NAME_BYTES:
            return found
        raise ParameterError(
            f"{path} is damaged: it has {len(found)} bytes instead of {NAME_BYTES}.",
            param="kv_store",
            hint=f"Run: twofold kv rm {folder} (removes the whole store).",
        )
    draft = folder / f"{STAGED}{secrets.token_hex(8)}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(NAME_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(draft, path)  # the first of several processes wins
    finally:
        draft.unlink(missing_ok=True)
    return path.read_bytes()


@dataclass(slots=True)
class StoreFolder:
    """The folder of one model in a store, locked by this process until ``close``.

    ``writable`` is False on a read-only disk: segments are then read, and none is written. ``lost`` files were damaged
    or had no parent; they were removed when the index was made.
    """

    path: Path
    keys: StoreKeys
    lock: int | None
    lost: int = 0

    @property
    def writable(self) -> bool:
        return self.lock is not None

    def file(self, name: bytes) -> Path:
        """The file of a segment."""
        return self.path / f"{name.hex()}{SUFFIX}"

    def close(self) -> None:
        """Lets other processes use the folder. Closing twice is fine."""
        descriptor, self.lock = self.lock, None
        if descriptor is not None:
            os.close(descriptor)

    def index(self, budget: int, now: float) -> SegmentIndex:
        """The segments of the folder, by last use. Files that are damaged or have lost their parent are removed."""
        found: dict[bytes, tuple[int, StoredSegment, int]] = {}
        for name, size, modified in segment_files(self.path):
            header = read_header(self.file(name), self.keys)
            if header is not None and header.name == name and size == header.file_bytes:
                skip = tuple(group.skip for group in header.groups)
                found[name] = modified, StoredSegment(name, header.parent, size, skip), header.place
            else:
                self._remove(name)
        index, wall = SegmentIndex(budget), time.time_ns()
        for name, (modified, _, _) in sorted(found.items(), key=lambda item: item[1][0]):
            chain = [name]
            while found[chain[-1]][2] and found[chain[-1]][1].parent in found:
                chain.append(found[chain[-1]][1].parent)
            if found[chain[-1]][2]:
                self._remove(name)
                continue
            for each in reversed(chain):
                if each not in index:
                    index.add(found[each][1], ())
            chain.reverse()
            index.touch(chain)
            if modified > wall:
                index.pin(chain, now + (modified - wall) / 1e9, now)
        for name in index.make_room(0, now) or ():
            self._remove(name)
        return index

    def _remove(self, name: bytes) -> None:
        self.lost += 1
        if self.writable:
            with suppress(OSError):
                self.file(name).unlink()


def open_folder(store: Path, identity: bytes, model: str) -> StoreFolder | None:
    """Opens the folder of a model in a store for this process alone; None, with a warning, if the disk refuses.

    Raises ParameterError for a folder that others can write to or a path that is no folder, ResourceError if another
    process serves the model from this store.
    """
    path = store / identity.hex()[:IDENTITY_CHARS]
    try:
        secure_folder(store)
        secret = read_secret(store)
        secure_folder(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise ParameterError(f"The KV store {store} is not a folder.", param="kv_store") from error
    except OSError as error:
        _warn(store, error.strerror)
        return None
    keys = StoreKeys(secret, identity)
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _warn(store, error.strerror)
        return StoreFolder(path, keys, None)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise ResourceError(
            f"Process {owner or 'unknown'} serves {model} from the KV store {store} already.",
            hint="Stop it, or give this one a store of its own.",
        ) from error
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        (path / "model").write_text(model, encoding="utf-8")
    for left in path.glob(f"{STAGED}*"):
        left.unlink(missing_ok=True)
    return StoreFolder(path, keys, lock)


def store_identity(model: Path, store: Path, settings: Sequence[object]) -> bytes:
    """What keys and values depend on: every byte of the model's file, and the ``settings`` of engine and program.

    The digest of a file is kept in the store beside its size, inode and times, as long as they stay the same: reading a
    whole model takes seconds. Raises OSError if the model cannot be read.
    """
    info = model.stat()
    known = repr((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    memo = store / "models" / hashlib.sha256(known.encode()).hexdigest()
    try:
        content = memo.read_text(encoding="ascii")
    except (OSError, ValueError):
        with model.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        with suppress(OSError):
            write_whole(memo, content.encode())
    return hashlib.sha256(repr((content, *settings)).encode()).digest()


def segment_files(folder: Path) -> Iterator[tuple[bytes, int, int]]:
    """Name, size and time of modification (ns) of each file that is named like a segment."""
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if suffix == SUFFIX and len(stem) == 2 * NAME_BYTES and entry.is_file(follow_symlinks=False):
                with suppress(ValueError, FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    yield bytes.fromhex(stem), info.st_size, info.st_mtime_ns


def read_header(path: Path, keys: StoreKeys) -> SegmentHeader | None:
    """The header of a file; None if it is not one of these keys."""
    try:
        with path.open("rb") as file:
            return SegmentHeader.read(file.read(header_bytes(MAX_GROUPS)), keys)
    except OSError:
        return None


class KVFiles:
    """Reads and writes the segments of a folder on threads of its own, which call ``wake`` after each result."""

    def __init__(self, folder: StoreFolder, block_bytes: BlockBytes) -> None:
        self._folder = folder
        self._block_bytes = block_bytes
        self.wake: Callable[[], object] = lambda: None
        self._results: deque[StoreResult] = deque()
        self._changed = threading.Condition()
        self._warned = False
        threads = min(os.cpu_count() or 1, MAX_READERS)
        self._readers = ThreadPoolExecutor(threads, "twofold-kv-read", initializer=_yield_cores)
        self._writer = ThreadPoolExecutor(1, "twofold-kv-write", initializer=_yield_cores)

    def submit(self, jobs: Iterable[StoreJob]) -> None:
        """Begins jobs; those that read and write have a result."""
        for job in jobs:
            if isinstance(job, ReadJob):
                _Reading(job, self._read, self._done).begin(self._readers)
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
        self._writer.shutdown()

    def _done(self, result: StoreResult) -> None:
        with self._changed:
            self._results.append(result)
            self._changed.notify_all()
        self.wake()

    def _read(self, part: SegmentBlocks) -> int | None:
        """Fills the blocks of a segment; the bytes that were read, or None if it cannot be accepted. Raises OSError."""
        wanted, keys = part.header, self._folder.keys
        try:
            descriptor = os.open(self._folder.file(wanted.name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            header = SegmentHeader.read(os.pread(descriptor, header_bytes(len(wanted.groups)), 0), keys)
            if header is None or header.without_macs() != wanted or os.fstat(descriptor).st_size != header.file_bytes:
                return None
            at, total = header_bytes(len(header.groups)), 0
            for number, (group, blocks) in enumerate(zip(header.groups, part.blocks, strict=True)):
                if blocks:
                    views = self._views(number, blocks)
                    mac = keys.payload_mac(header.name, number)
                    if not _read_into(descriptor, views, at):
                        return None
                    for view in views:
                        mac.update(view)
                    if not hmac.compare_digest(mac.digest(), group.mac):
                        return None
                    total += len(blocks) * group.block_bytes
                at += (header.blocks - group.skip) * group.block_bytes
            return total
        finally:
            os.close(descriptor)

    def _write(self, job: WriteJob | DeleteJob | TouchJob) -> None:
        if isinstance(job, WriteJob):
            written, error = 0, ""
            try:
                for part in job.segments:
                    self._write_segment(part, job.pinned_s)
                    written += 1
            except Exception as failure:  # the blocks must be released, whatever happened
                error = getattr(failure, "strerror", None) or repr(failure)
                if not self._warned:
                    self._warned = True
                    _warn(self._folder.path.parent, error)
            self._done(WriteResult(job.number, written, error))
            return
        for place, name in enumerate(job.names):
            with suppress(OSError):
                if isinstance(job, DeleteJob):
                    self._folder.file(name).unlink()
                else:
                    _set_use(self._folder.file(name), job.ahead_s, place)

    def _write_segment(self, part: SegmentBlocks, pinned_s: float) -> None:
        """Writes a segment to a file of its own, then gives it its name. Raises OSError, and leaves nothing then."""
        if not self._folder.writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        keys, name, groups = self._folder.keys, part.header.name, []
        views: list[memoryview] = []
        for number, (group, blocks) in enumerate(zip(part.header.groups, part.blocks, strict=True)):
            mine = self._views(number, blocks)
            mac = keys.payload_mac(name, number)
            for view in mine:
                mac.update(view)
            groups.append(replace(group, mac=mac.digest()))
            views += mine
        header = replace(part.header, groups=tuple(groups))
        draft = self._folder.path / f"{STAGED}{name.hex()}"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_from(descriptor, [memoryview(header.pack(keys)), *views])
            finally:
                os.close(descriptor)
            _set_use(draft, pinned_s, header.place)
            draft.rename(self._folder.file(name))
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise

    def _views(self, group: int, blocks: Iterable[int]) -> list[memoryview]:
        return [view for block in blocks for view in self._block_bytes(group, block)]


class _Reading:
    """One ReadJob, its segments on several threads."""

    def __init__(
        self, job: ReadJob, read: Callable[[SegmentBlocks], int | None], done: Callable[[ReadResult], None]
    ) -> None:
        self._job = job
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
            self._sizes[place] = self._read(self._job.segments[place])
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


def _read_into(descriptor: int, views: Sequence[memoryview], at: int) -> bool:
    """Fills the views from a place in a file; False if the file ends before."""
    for first in range(0, len(views), MAX_VECTORS):
        some = list(views[first : first + MAX_VECTORS])
        while some:
            count = os.preadv(descriptor, some, at)
            if not count:
                return False
            at += count
            some = _after(some, count)
    return True


def _write_from(descriptor: int, views: Sequence[memoryview]) -> None:
    for first in range(0, len(views), MAX_VECTORS):
        some = list(views[first : first + MAX_VECTORS])
        while some:
            some = _after(some, os.writev(descriptor, some))


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the views after ``count`` bytes."""
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]] if count else views[index:]
        count -= view.nbytes
    return []


def _set_use(path: Path, ahead_s: float, place: int) -> None:
    """Notes the use of a segment; its parent was used a nanosecond later."""
    used = time.time_ns() + int(ahead_s * 1e9) - place
    os.utime(path, ns=(used, used))


def _yield_cores() -> None:
    """Lowers the priority of this thread, on systems where threads have one each."""
    if hasattr(os, "setpriority") and sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _warn(store: Path, reason: str | None) -> None:
    log.warning("the KV store %s cannot be written (%s): the model runs on without writing to it", store, reason)
