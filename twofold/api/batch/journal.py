"""The output of a batch: a file to which results are appended, and from which the batch resumes.

Invariants
- A result is appended whole, in one write, once it is final. A kill leaves at most one torn line, the last.
- Lines are never changed, and finished lines are never run again.
- A power cut may lose the results of the last SYNC_SECONDS; those lines run again.
- One process at a time: the file is locked while it is open.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from twofold.core.clock import Clock
from twofold.core.errors import ResourceError, UsageError

SYNC_SECONDS: Final = 5.0
ID_PREFIX: Final = "batch_req_"
_HEAD: Final = f'{{"id":"{ID_PREFIX}'.encode()
_OTHER_FILE: Final = "Name another output file, or give --overwrite to start over."


@dataclass(frozen=True, slots=True)
class BatchTally:
    """Finished lines and their tokens, as the usage of their bodies reports them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def finished(self) -> int:
        return self.completed + self.failed

    def plus(self, result: Mapping[str, Any]) -> Self:
        """The tally with one more result."""
        if result["error"] is not None:
            return replace(self, failed=self.failed + 1)
        usage = result["response"]["body"].get("usage") or {}
        prompt, completion = (usage.get(f"{part}_tokens_details") or {} for part in ("prompt", "completion"))
        return replace(
            self,
            completed=self.completed + 1,
            input_tokens=self.input_tokens + usage.get("prompt_tokens", 0),
            cached_tokens=self.cached_tokens + prompt.get("cached_tokens", 0),
            output_tokens=self.output_tokens + usage.get("completion_tokens", 0),
            reasoning_tokens=self.reasoning_tokens + completion.get("reasoning_tokens", 0),
        )


EMPTY_TALLY: Final = BatchTally()


class Journal:
    """The output file at ``path``, locked. It is not changed before the first ``write``, unless ``overwrite``
    empties it.

    finished   keys of the lines that earlier runs finished
    models     the models that completed them
    tally      of all results, those of ``write`` included

    Raises UsageError for a file that no batch wrote or that another process holds, ResourceError if it cannot be
    written.
    """

    def __init__(self, path: Path, clock: Clock, *, overwrite: bool = False) -> None:
        self._path = path
        self._clock = clock
        self.finished: set[str] = set()
        self.models: set[str] = set()
        self.tally = EMPTY_TALLY
        self._size = 0
        self._torn = True
        self._file = _opened(path)
        try:
            _lock(self._file, path)
            if overwrite:
                self._file.truncate(0)
            for data, result in read_results(path):
                self._size += len(data)
                self.tally = self.tally.plus(result)
                self.finished.add(result["id"].removeprefix(ID_PREFIX))
                if result["error"] is None:
                    self.models.add(str(result["response"]["body"]["model"]))
        except BaseException:
            self._file.close()
            raise
        self._synced = clock.now()

    def check(self, keys: Iterable[str]) -> int:
        """Checks that the output belongs to an input with these ``keys``; returns their number.

        Raises UsageError if the output has results of another input.
        """
        strange, total = set(self.finished), 0
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
        """Raises UsageError if another model made results of the file."""
        for other in sorted(self.models - {model}):
            raise UsageError(f"{self._path} has results of the model {other!r}, not of {model!r}.", hint=_OTHER_FILE)

    def write(self, key: str, record: Mapping[str, Any]) -> None:
        """Appends the result of the line ``key``, or nothing: raises ResourceError if the disk is full."""
        data = encode_result(key, record)
        try:
            if self._torn:
                self._file.truncate(self._size)
                self._torn = False
            _write_all(self._file, data)
            self._size += len(data)
            self.tally = self.tally.plus(record)
            if self._clock.now() - self._synced >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise ResourceError(
                f"{self._path} cannot be written: {error.strerror}.", hint="Make room and run the same command again."
            ) from error

    def close(self) -> None:
        """Writes everything to the disk and releases the lock. Closing twice is allowed."""
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
    """The file, opened without a buffer; every write appends."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file.", hint="A batch needs one, so that it can be resumed.")
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be opened for writing: {error.strerror}.", hint="Name an output file in another folder."
        ) from error


def _lock(file: BinaryIO, path: Path) -> None:
    """Locks an open file until it is closed. Raises UsageError if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        hint = "Wait for it, or name another output file."
        raise UsageError(f"Another process is writing {path}.", hint=hint) from error


def read_results(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines of an output file, as bytes and as decoded objects.

    Raises UsageError for a file that is not the output of a batch. A torn last line must be the start of a result.
    """
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                torn = data.rstrip(b"\0")  # a file system may leave zeros after a power cut
                if not (torn.startswith(_HEAD) or _HEAD.startswith(torn)):
                    raise _no_output(path, number)
                return
            try:
                result: dict[str, Any] = json.loads(data)
                EMPTY_TALLY.plus(result)  # raises unless it is a result
                ours = result["id"].startswith(ID_PREFIX) and (
                    result["error"] is not None or "model" in result["response"]["body"]
                )
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise _no_output(path, number) from error
            if not ours:
                raise _no_output(path, number)
            yield data, result


def _no_output(path: Path, number: int) -> UsageError:
    return UsageError(f"Line {number} of {path} is not a batch result.", hint=_OTHER_FILE)


def encode_result(key: str, record: Mapping[str, Any]) -> bytes:
    """The result of the line ``key`` as a line of JSON. Lone surrogates, which only input can have, stay escaped."""
    result = {"id": ID_PREFIX + key, **record}
    try:
        return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(result, separators=(",", ":")).encode() + b"\n"


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Writes all of ``data``: in one call, or in several if the system accepts only a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
