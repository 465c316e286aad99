"""A server's data folder, and the choice of one for a server that was given none."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from twofold.core.errors import ResourceError, UsageError

MAX_SERVERS: Final = 100
PORT_BYTES: Final = 8


class DataFolder:
    """The folder at ``path``, created if it is missing, readable by its owner only, and locked while it is open.

    Raises UsageError where another process has it open, ResourceError where it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.guarded():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"Another server keeps its data in {path}.",
                hint="Stop it, or choose another folder with --data-folder.",
            ) from error

    def inner(self, name: str) -> Path:
        """A folder inside this one, created if it is missing."""
        folder = self.path / name
        with self.guarded():
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def port(self) -> int | None:
        """The port of the last server that used it; None if unknown."""
        noted = os.pread(self._lock, PORT_BYTES, 0)
        return int(noted) if noted.isdigit() else None

    def serve(self, port: int) -> None:
        """Notes the port of the server that uses it now; 0 is none."""
        if port:
            with self.guarded():
                os.truncate(self._lock, 0)
                os.pwrite(self._lock, str(port).encode(), 0)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turns OSError into ResourceError, whose text does not contain the folder's path."""
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"The server's data folder cannot be used: {error.strerror}.",
                hint="Make room, or choose another folder with --data-folder.",
            ) from error

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def claim_folder(base: Path, port: int) -> DataFolder:
    """A data folder that no other server uses: ``base``, or one inside it.

    Of the free ones it is the one that a server on this port used last, so that several servers find their own again;
    else the first one. Raises UsageError where there are too many, ResourceError where none can be used.
    """
    free: list[DataFolder] = []
    for number in range(1, MAX_SERVERS + 1):
        path = base if number == 1 else base / "servers" / str(number)
        if free and not path.exists():
            break
        try:
            free.append(DataFolder(path))
        except UsageError:
            continue
    if not free:
        raise UsageError(f"{MAX_SERVERS} servers keep their data in {base}.", hint="Name a folder with --data-folder.")
    chosen = next((folder for folder in free if port and folder.port == port), free[0])
    for folder in free:
        if folder is not chosen:
            folder.close()
    chosen.serve(port)
    return chosen
