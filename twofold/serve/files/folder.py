"""A folder in which one server keeps its data."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from twofold.core.errors import ResourceError, UsageError


class DataFolder:
    """The folder at ``path``, made where it is not there, readable by its owner only, and locked while it is open.

    Raises UsageError where another process has it open, ResourceError where it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self.told():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(
                f"Another server keeps its data in {path}.", hint="Stop it, or give this one another data folder."
            ) from error

    def inner(self, name: str) -> Path:
        """A folder inside this one, made where it is not there."""
        folder = self._path / name
        with self.told():
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turns errors of the system into ours, which do not show where the folder is."""
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"The server's data folder cannot be used: {error.strerror}.",
                hint="Make room, or give the server another data folder.",
            ) from error

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
