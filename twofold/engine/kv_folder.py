"""The folder of a KV store.

    DIR/secret                 32 random bytes, the key of all names and MACs
    DIR/models/*               digests of model files, so that they are read once
    DIR/IDENTITY/NAME.kv       a segment (``kv.segments``); its time of modification is that of its last use, or the end
                               of its pin
    DIR/IDENTITY/.writing-*    a segment that is being written; removed at the next start if its writer was killed
    DIR/IDENTITY/lock          locked by the process that serves the model from this store
    DIR/IDENTITY/model         the model's name, for people

There is no list of segments: the folder is the list. Nothing waits for the disk: after a loss of power a file may have
lost its contents; its MAC says so, and it is computed again. Keys and values steer a model as a prompt does, hence the
secret, and hence folders that only their owner can write.
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from twofold.engine.kv_mac import PayloadMac
from twofold.host.digest import UniversalHash, universal_hash
from twofold.host.paths import open_own, write_whole

log = logging.getLogger("twofold.kv_store")

SUFFIX: Final = ".kv"
STAGED: Final = ".writing-"
PIECE: Final = 1 << 20
MAX_GROUPS: Final = 16
"""More KV groups than any model has."""
OTHER_FOLDER: Final = "Choose another folder with --kv-store."


def secure_folder(path: Path) -> None:
    """Creates a folder for its owner only. Raises ParameterError if others own it or can write to it, or if it is no
    folder, and OSError if it cannot be created."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    what, way_out = "", OTHER_FOLDER
    if info.st_uid != os.getuid():
        what = "belongs to another user"
    elif stat.S_IMODE(info.st_mode) & 0o022:
        what, way_out = "can be written by other users", f"Run: chmod 700 {path} (or choose another --kv-store)."
    if what:
        message = f"The KV store {path} {what}, who could change what the model answers."
        raise ParameterError(message, param="kv_store", hint=way_out)


def read_secret(folder: Path) -> bytes:
    """The secret of a store, which is made with its first use. Raises OSError."""
    path = folder / "secret"
    with suppress(FileNotFoundError):
        return _checked_secret(folder, path.read_bytes())
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


def _checked_secret(store: Path, secret: bytes) -> bytes:
    if len(secret) != NAME_BYTES:
        raise ParameterError(
            f"{store / 'secret'} is damaged: it has {len(secret)} bytes instead of {NAME_BYTES}.",
            param="kv_store",
            hint=f"Run: twofold kv rm {store} (removes the whole store).",
        )
    return secret


@dataclass(slots=True)
class StoreFolder:
    """The folder of one model in a store, locked by this process until ``close``.

    ``writable`` is False on a read-only disk: segments are then read, and none is written. ``lost`` files were damaged
    or had no parent; they were removed when the index was made, and ``evicted`` ones because they were too many. MACs
    are computed with ``universal_hash``.
    """

    path: Path
    keys: StoreKeys
    lock: int | None = None
    universal_hash: UniversalHash = universal_hash
    lost: int = 0
    evicted: int = 0

    @property
    def writable(self) -> bool:
        return self.lock is not None

    def file(self, name: bytes) -> Path:
        """The file of a segment."""
        return self.path / f"{name.hex()}{SUFFIX}"

    def mac(self, name: bytes, group: int) -> PayloadMac:
        """Computes the MAC of a group of a segment."""
        return PayloadMac(self.keys, name, group, self.universal_hash)

    @property
    def model(self) -> str:
        """The name that the model had when it was served from here last."""
        try:
            return (self.path / "model").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "unknown"

    @property
    def server(self) -> str:
        """The id of the process that uses this folder; "" if no process uses it."""
        try:
            with (self.path / "lock").open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read(32).decode(errors="replace")
        except OSError:
            pass
        return ""

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
            self.evicted += 1
            self.file(name).unlink(missing_ok=True)
        return index

    def _remove(self, name: bytes) -> None:
        self.lost += 1
        if self.writable:
            with suppress(OSError):
                self.file(name).unlink()


def open_folder(
    store: Path, identify: Callable[[], bytes], model: str, universal_hash: UniversalHash = universal_hash
) -> StoreFolder | None:
    """Opens the folder of a model in a store for this process alone; None, with a warning, if the disk refuses.

    ``identify`` gives the identity of the model once the store exists.

    Raises ParameterError for a folder that others can write to or a path that is no folder, ResourceError if another
    process serves the model from this store.
    """
    try:
        secure_folder(store)
        secret = read_secret(store)
        identity = identify()
        path = store / identity.hex()
        secure_folder(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise ParameterError(f"The KV store {store} is not a folder.", param="kv_store", hint=OTHER_FOLDER) from error
    except OSError as error:
        warn(store, error.strerror)
        return None
    keys = StoreKeys(secret, identity)
    try:
        lock = open_own(path / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _linked(path / "lock") from error
        warn(store, error.strerror)
        return StoreFolder(path, keys, universal_hash=universal_hash)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise _in_use(owner, model, store) from error
    folder = StoreFolder(path, keys, lock, universal_hash=universal_hash)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        with os.fdopen(open_own(path / "model", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
            file.write(model)
    except OSError as error:
        if error.errno == errno.ELOOP:
            folder.close()
            raise _linked(path / "model") from error
    _remove_files(path.glob(f"{STAGED}*"))
    return folder


def store_identity(parts: Sequence[Path], store: Path, settings: Sequence[object]) -> bytes:
    """What keys and values depend on: every byte of the model's file, and the ``settings`` of engine and program.
    Raises OSError if the model cannot be read."""
    digests = [_content_digest(part, store / "models") for part in parts]
    content = digests[0] if len(digests) == 1 else tuple(digests)
    return hashlib.sha256(repr((content, *settings)).encode()).digest()


def _content_digest(path: Path, folder: Path) -> str:
    """It is kept in ``folder`` beside the file's size, inode and times, as long as they stay the same: reading a whole
    model takes seconds."""
    info = path.stat()
    known = repr((info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    memo = folder / hashlib.sha256(known.encode()).hexdigest()
    try:
        return memo.read_text(encoding="ascii")
    except (OSError, ValueError):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        with suppress(OSError):
            write_whole(memo, content.encode())
        return content


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


def find_folders(store: Path) -> list[StoreFolder]:
    """The folders of all models in a store, to look at them. Raises ParameterError if it is no store."""
    try:
        secret = (store / "secret").read_bytes()
        names = sorted(entry.name for entry in store.iterdir() if (entry / "lock").exists())
    except OSError as error:
        empty = isinstance(error, FileNotFoundError) and store.is_dir()
        reason = 'it has no file "secret"' if empty else error.strerror
        raise ParameterError(
            f"{store} is no KV store: {reason}.", param="store", hint="Give the folder of --kv-store."
        ) from error
    found = []
    for name in names:
        with suppress(ValueError):
            found.append(StoreFolder(store / name, StoreKeys(secret, bytes.fromhex(name))))
    return found


def damaged(folder: StoreFolder) -> list[Path]:
    """The segments of a folder that would not be accepted: they are damaged, forged, of another version, or have lost
    their parent. Raises ParameterError if the store's secret is damaged."""
    _checked_secret(folder.path.parent, folder.keys.secret)
    names = {name for name, _, _ in segment_files(folder.path)}
    found = sorted(folder.file(name) for name in names if not _is_whole(folder, name, names))
    return [path for path in found if path.exists()]  # the process that serves the model may have evicted others


def _is_whole(folder: StoreFolder, name: bytes, names: set[bytes]) -> bool:
    keys = folder.keys
    header = read_header(folder.file(name), keys)
    if header is None or header.name != name or keys.name(header.parent, header.tokens) != name:
        return False
    if header.place and header.parent not in names:
        return False
    try:
        file = folder.file(name).open("rb")
    except OSError:
        return False
    with file:
        file.seek(header_bytes(len(header.groups)))
        for number, group in enumerate(header.groups):
            mac, left = folder.mac(name, number), (header.blocks - group.skip) * group.block_bytes
            while left and (piece := file.read(min(left, PIECE))):
                mac.update(memoryview(piece))
                left -= len(piece)
            if left or not hmac.compare_digest(mac.digest(), group.mac):
                return False
        return not file.read(1)


def remove(store: Path, folders: Sequence[StoreFolder], *, whole: bool) -> None:
    """Removes folders of a store, and with ``whole`` the store; files of others stay, and so do folders with them.

    Raises ResourceError, and removes nothing, if one of them is in use.
    """
    for folder in folders:
        if owner := folder.server:
            raise _in_use(owner, folder.model, store)
    ours = [path for folder in folders for path in _files(folder)]
    shared = [store / "secret", *(store / "models").glob("*"), *store.glob(f"{STAGED}*")] if whole else []
    _remove_files((*ours, *shared))
    for path in (*(folder.path for folder in folders), *((store / "models", store) if whole else ())):
        with suppress(OSError):
            path.rmdir()


def _remove_files(paths: Iterable[Path]) -> None:
    """Removes files. Folders of their names are not ours, and stay."""
    for path in paths:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


def _linked(path: Path) -> ParameterError:
    return ParameterError(
        f"{path} is a symbolic link: writing to it would change another file.",
        param="kv_store",
        hint=f"Remove it: rm {path}",
    )


def _files(folder: StoreFolder) -> Iterator[Path]:
    yield from (folder.file(name) for name, _, _ in segment_files(folder.path))
    yield from folder.path.glob(f"{STAGED}*")
    yield from (folder.path / "lock", folder.path / "model")


def _in_use(owner: str, model: str, store: Path) -> ResourceError:
    return ResourceError(
        f"Process {owner or 'unknown'} serves {model} from the KV store {store}.",
        hint="Stop it first, or use another store.",
    )


def warn(store: Path, reason: str | None) -> None:
    """Says once that a disk refuses; the caller counts it."""
    log.warning("the KV store %s cannot be written (%s): the model runs on without writing to it", store, reason)
