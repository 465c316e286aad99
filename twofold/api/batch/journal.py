"""The output of a batch: a file to which finished lines are added, and from which a batch is taken up again.

Laws
- A line is added whole, by one write, once what it tells is final. So a kill leaves at most one torn line, the last.
- Lines are never changed, and what an earlier run finished is never done again.
- A power cut may take what was written in the last SYNC_SECONDS; those lines are then done again.
- One process at a time: the file is locked while it is open.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from twofold.core.clock import Clock
from twofold.core.errors import ResourceError, UsageError

SYNC_SECONDS: Final = 5.0
ID_PREFIX: Final = "batch_req_"
_HEAD: Final = f'{{"id":"{ID_PREFIX}'.encode()
_OTHER_FILE: Final = "Name another output file, or give --overwrite to start over."


@dataclass(slots=True)
class Found:
    """What lay in the output: the keys of finished lines, how many of them failed, and who answered the others.

    ``size`` is where its whole lines end, in bytes.
    """

    finished: set[str] = field(default_factory=set)
    failed: int = 0
    models: set[str] = field(default_factory=set)
    size: int = 0


def _unheard(_line: Mapping[str, Any]) -> None:
    return


class Journal:
    """The output file at ``path``, locked. It is not changed before the first ``write``, but for ``overwrite``, which
    empties it. ``hear`` is told each line that is found in it.

    Raises UsageError for a file that no batch wrote or that another process holds, ResourceError where it cannot be
    written.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        overwrite: bool = False,
        hear: Callable[[Mapping[str, Any]], None] = _unheard,
    ) -> None:
        self._path = path
        self._clock = clock
        self._file = _opened(path)
        try:
            _lock(self._file, path)
            if overwrite:
                self._file.truncate(0)
            self.found = _read(path, hear)
        except BaseException:
            self._file.close()
            raise
        self._size = self.found.size
        self._torn = True
        self._synced = clock.now()

    def check(self, keys: Iterable[str]) -> int:
        """Makes sure that the output belongs to an input with these ``keys``; how many these are.

        Raises UsageError where the output holds lines of another input.
        """
        strange, total = set(self.found.finished), 0
        for key in keys:
            strange.discard(key)
            total += 1
        if strange:
            raise UsageError(
                f"{self._path} has {len(strange)} lines that match no request of this input.",
                hint=_OTHER_FILE,
            )
        return total

    def check_model(self, model: str) -> None:
        """Raises UsageError where another model gave the answers that are there."""
        for other in sorted(self.found.models - {model}):
            raise UsageError(f"{self._path} holds answers of the model {other!r}, not of {model!r}.", hint=_OTHER_FILE)

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Adds the line of ``key``. ResourceError where the disk does not take it; the file then ends as before."""
        data = _encoded({"id": ID_PREFIX + key, **record})
        try:
            if self._torn:
                self._file.truncate(self._size)
                self._torn = False
            _write_all(self._file, data)
            self._size += len(data)
            if self._clock.now() - self._synced >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise ResourceError(
                f"{self._path} cannot be written: {error.strerror}.", hint="Make room and run the same command again."
            ) from error

    def close(self) -> None:
        """Brings what was written to the disk and gives the lock back. Closing twice is fine."""
        if self._file.closed:
            return
        try:
            self._sync()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = self._clock.now()


def _opened(path: Path) -> BinaryIO:
    """The file, without a buffer; every write goes to its end."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file.", hint="A batch needs one, so that it can be resumed.")
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be opened for writing: {error.strerror}.", hint="Name an output file in another folder."
        ) from error


def _lock(file: BinaryIO, path: Path) -> None:
    """Takes the lock of an open file, or raises; closing the file gives it back."""
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - exists only there

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - does not exist on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UsageError(
            f"Another process is writing {path}.", hint="Wait for it, or name another output file."
        ) from error


def _read(path: Path, hear: Callable[[Mapping[str, Any]], None]) -> Found:
    """Reads the whole lines. A torn last one must look like the start of a line, or this is no output of a batch."""
    found = Found()
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                torn = data.rstrip(b"\0")  # a file system may leave zeros after a power cut
                if not (torn.startswith(_HEAD) or _HEAD.startswith(torn)):
                    raise _no_output(path, number)
                break
            hear(_take(found, data, path, number))
            found.size += len(data)
    return found


def _take(found: Found, data: bytes, path: Path, number: int) -> dict[str, Any]:
    """Notes a line; the object that it is."""
    try:
        line: dict[str, Any] = json.loads(data)
        identity, failed = line["id"], line["error"] is not None
        model = None if failed else line["response"]["body"]["model"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _no_output(path, number) from error
    if not isinstance(identity, str) or not identity.startswith(ID_PREFIX):
        raise _no_output(path, number)
    found.finished.add(identity.removeprefix(ID_PREFIX))
    found.failed += failed
    if model is not None:
        found.models.add(str(model))
    return line


def _no_output(path: Path, number: int) -> UsageError:
    return UsageError(f"Line {number} of {path} is not a batch result.", hint=_OTHER_FILE)


def _encoded(record: Mapping[str, Any]) -> bytes:
    """One line of JSON. Text that is not Unicode, which only input can bring in, is escaped as it was there."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _write_all(file: BinaryIO, data: bytes) -> None:
    """One write; more only where the system takes part of it."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
