"""A small SQLite file with its tables, readable by its owner only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twofold.core.errors import ResourceError, UsageError

Value = str | int | float | None


class Database:
    """The database at ``path``; ``schema`` makes its tables where they are not there yet.

    ``version`` is the schema's. Every statement is a transaction of its own, and on the disk when it returns. It
    belongs to the thread that opened it. Raises UsageError for a file of another version, ResourceError where it
    cannot be read or written.
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self._path = path
        with self._told():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # SQLite would make it readable by all
            self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            with self._told():
                self._prepare(schema, version)
        except BaseException:
            self._connection.close()
            raise

    def rows(self, query: str, *values: Value) -> list[tuple[Any, ...]]:
        """What a query finds."""
        with self._told():
            return self._connection.execute(query, values).fetchall()

    def write(self, statement: str, *values: Value) -> int:
        """How many rows a statement changed."""
        with self._told():
            return self._connection.execute(statement, values).rowcount

    def close(self) -> None:
        self._connection.close()

    def _prepare(self, schema: str, version: int) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        ((found,),) = self._connection.execute("PRAGMA user_version").fetchall()
        if found not in (0, version):
            raise UsageError(
                f"{self._path} was written by another version of Twofold.",
                hint="Choose another folder with --data-folder.",
            )
        self._connection.executescript(schema)
        self._connection.execute(f"PRAGMA user_version = {version:d}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors of the system and of SQLite into ours."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ResourceError(
                f"The server's database {self._path.name} cannot be used: {reason}.",
                hint="Make room, or choose another folder with --data-folder.",
            ) from error
