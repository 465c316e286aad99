"""SQLite files of the server, used by one process at a time and readable by their owner only.

In a durable database a write is on disk when it returns, and a file that is corrupt or of another version is an error.
In any other database a power cut, but no crash of the process, may lose the last writes, and a bad file is renamed to
``<name>.bad`` and replaced by a new one.

``SingleThread`` makes blocking calls to disks and databases outside of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar

from twofold.core.errors import ResourceError, UsageError
from twofold.host.paths import open_own

P = ParamSpec("P")
T = TypeVar("T")
Value = str | int | float | None

CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
LOCK_WAIT_S: Final = 1.0
PRIMARY_CODE: Final = 0xFF
"""Bits of SQLite's extended error codes that contain the primary code."""


class Database:
    """The database at ``path``, in memory if it is None; ``schema`` creates missing tables.

    Any thread may call its methods, one at a time. Raises ResourceError if the file cannot be used, for example because
    another process uses it or the disk is full; UsageError for a durable file of another ``version``.
    """

    def __init__(self, path: Path | None, schema: str, version: int, *, durable: bool) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._durable = durable
        self._connection = self._opened()

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Returns the result of ``work`` in one transaction. If it finds a bad file, replaces the file and repeats."""
        try:
            return _transaction(self._connection, work)
        except sqlite3.Error as error:
            if self._durable or not _has_code(error, CORRUPT):
                raise self._unusable(error) from error
        self._connection.close()
        self._put_aside()
        self._connection = self._opened()
        try:
            return _transaction(self._connection, work)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def rows(self, query: str, *values: Value) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.use(lambda connection: connection.execute(query, values).fetchall())

    def write(self, statement: str, *values: Value) -> None:
        """Executes a statement."""
        self.use(lambda connection: connection.execute(statement, values))

    def close(self) -> None:
        """Closing twice is fine."""
        self._connection.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            try:
                return self._try_open()
            except _BadFileError:
                if self._durable:
                    raise
                self._put_aside()
                return self._try_open()
        except (sqlite3.Error, OSError, _BadFileError) as error:
            raise self._unusable(error) from error

    def _try_open(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(open_own(self._path, os.O_CREAT | os.O_RDWR))  # SQLite would create it readable by all
        connection = sqlite3.connect(
            self._path or ":memory:", timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error) and _has_code(error, CORRUPT):
                raise _BadFileError(str(error)) from error
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")  # takes the lock, which this process then holds
        ((found,),) = connection.execute("PRAGMA user_version").fetchall()
        connection.execute("COMMIT")
        if found not in (0, self._version):
            if self._durable:
                raise UsageError(
                    f"{self._path} was written by another version of Twofold.",
                    hint="Choose another folder with --data-folder.",
                )
            raise _BadFileError("it is of another version")
        connection.executescript(self._schema)
        connection.execute(f"PRAGMA user_version = {self._version:d}")

    def _put_aside(self) -> None:
        if self._path is None:
            return
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).unlink()
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(self._path.name + ".bad"))

    def _unusable(self, error: Exception) -> ResourceError:
        name = "in memory" if self._path is None else self._path.name
        if isinstance(error, sqlite3.Error) and _has_code(error, LOCKED):
            return ResourceError(
                f"The database {name} is used by another process.", hint="Choose another folder with --data-folder."
            )
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ResourceError(
            f"The database {name} cannot be used: {reason}.",
            hint="Free disk space, or choose another folder with --data-folder.",
        )


class _BadFileError(Exception):
    """The file is not a database of this version."""


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


def _has_code(error: sqlite3.Error, codes: frozenset[int]) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # errors of Python's module itself have no code
    return code is not None and code & PRIMARY_CODE in codes


def shares_schema(table: str) -> str:
    """SQL for a ``table`` of bounded size: the table ``held`` has the sum of its column ``size`` for each tenant."""
    return f"""
CREATE TABLE IF NOT EXISTS held (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS kept AFTER INSERT ON {table} BEGIN
    INSERT INTO held VALUES (new.tenant, new.size)
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON {table} BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE tenant = old.tenant;
    DELETE FROM held WHERE tenant = old.tenant AND bytes = 0;
END;
"""


def evict(sql: sqlite3.Connection, table: str, order: str, max_bytes: int) -> None:
    """Deletes entries until all fit: each time, the first by ``order`` of the tenant with the most bytes."""
    oldest = f"""
    SELECT rowid FROM {table} WHERE tenant = (SELECT tenant FROM held ORDER BY bytes DESC, tenant LIMIT 1)
    ORDER BY {order} LIMIT 1
"""
    while sql.execute("SELECT coalesce(sum(bytes), 0) FROM held").fetchone()[0] > max_bytes:
        assert sql.execute(f"DELETE FROM {table} WHERE rowid = ({oldest})").rowcount, "held has the sum of all sizes"


class SingleThread:
    """A thread that makes calls in the order in which they arrive, so objects that only its calls use need no lock.

    A call that has started runs to its end; a waiting one is dropped when its coroutine is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    @classmethod
    async def open(cls, name: str, make: Callable[P, T], *args: P.args, **more: P.kwargs) -> tuple[Self, T]:
        """A thread, and what ``make`` returns there. Raises what ``make`` raises."""
        thread = cls(name)
        try:
            return thread, await thread.call(make, *args, **more)
        except BaseException:
            thread.close()
            raise

    async def call(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """The result of ``do(*args, **more)``. Raises its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more))

    async def call_even_if_cancelled(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Like ``call``, but the call is made even if the coroutine is cancelled before it starts."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more)))

    async def each(self, items: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """The items, each made by a call."""
        try:
            while found := await self.call(list, islice(items, 1)):
                yield found[0]
        finally:
            await self.call_even_if_cancelled(items.close)

    async def drive(self, work: Generator[T | None, None, None]) -> T:
        """The last item of ``work``, which yields None between its steps; other calls may be made between them."""
        *_, result = [item async for item in self.each(work)]
        assert result is not None
        return result

    async def end(self, do: Callable[[], None]) -> None:
        """Makes a last call and ends the thread."""
        await self.call(do)
        self.close()

    def close(self) -> None:
        """Waits for calls that have started. No call may follow."""
        self._pool.shutdown(wait=True)
