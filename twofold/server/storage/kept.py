"""A SQLite file of things that no client waits for: kept answers, sums of what was used.

A file that is corrupt, or of another version, is put aside as ``<name>.bad`` and made anew: never an error for a
client. It belongs to one process at a time and is readable by its owner only. A crash of the process loses nothing that
``use`` did; a power cut may lose the last of it, never the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from twofold.core.errors import ResourceError

T = TypeVar("T")

CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
LOCK_WAIT_S: Final = 1.0
PRIMARY_CODE: Final = 0xFF
"""SQLite's extended error codes have the plain one in these bits."""


class KeptFile:
    """The database at ``path``, in memory for None; ``schema`` makes its tables where there are none.

    Calls may come from any thread, but only one at a time. Raises ResourceError where the file cannot be used: another
    process holds it, there is no room, or no permission.
    """

    def __init__(self, path: Path | None, schema: str, version: int) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self.replaced = 0
        """How often a bad file was put aside."""
        self._connection = self._opened()

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does ``work`` in one transaction, once more where the file turned out to be bad; what it returns."""
        try:
            return _transaction(self._connection, work)
        except sqlite3.Error as error:
            if not _is(error, CORRUPT):
                raise self._unusable(error) from error
        self._connection.close()
        self._put_aside()
        self._connection = self._opened()
        try:
            return _transaction(self._connection, work)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Closing twice is fine."""
        self._connection.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            try:
                return self._try_open()
            except _BadFileError:
                self._put_aside()
                return self._try_open()
        except (sqlite3.Error, OSError, _BadFileError) as error:
            raise self._unusable(error) from error

    def _try_open(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would make it readable by all
        connection = sqlite3.connect(
            self._path or ":memory:", timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error) and _is(error, CORRUPT):
                raise _BadFileError from error
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")  # takes the lock, which this process then keeps
        ((found,),) = connection.execute("PRAGMA user_version").fetchall()
        connection.execute("COMMIT")
        if found not in (0, self._version):
            raise _BadFileError
        connection.executescript(self._schema)
        connection.execute(f"PRAGMA user_version = {self._version:d}")

    def _put_aside(self) -> None:
        self.replaced += 1
        if self._path is None:
            return
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).unlink()
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(self._path.name + ".bad"))

    def _unusable(self, error: Exception) -> ResourceError:
        name = "in memory" if self._path is None else self._path.name
        if isinstance(error, sqlite3.Error) and _is(error, LOCKED):
            return ResourceError(
                f"The database {name} is used by another process.", hint="Choose another folder with --data-folder."
            )
        reason = error.strerror if isinstance(error, OSError) else str(error) or "it is of another version"
        return ResourceError(
            f"The database {name} cannot be used: {reason}.",
            hint="Make room, or choose another folder with --data-folder.",
        )


class _BadFileError(Exception):
    """The file holds something else than this version writes."""


def _transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return result


def _is(error: sqlite3.Error, codes: frozenset[int]) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # errors of the module itself have none
    return code is not None and code & PRIMARY_CODE in codes
