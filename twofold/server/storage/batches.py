"""Batches on disk: records in SQLite, and a folder with input and journal for each batch that has not ended.

Not thread-safe.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from twofold.server.batches.record import BatchRecord
from twofold.server.storage.database import Database
from twofold.server.storage.folder import DataFolder
from twofold.server.storage.paging import TenantTable

KEPT_SECONDS: Final = 30 * 86400
"""How long after its creation an ended batch can be queried."""
ID_PREFIX: Final = "batch_"
_OURS: Final = re.compile(f"{ID_PREFIX}[0-9a-f]{{24}}")
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, number);
"""


@dataclass(frozen=True, slots=True)
class BatchPaths:
    """The files of a batch that has not ended."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "input.jsonl"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def output(self) -> Path:
        return self.folder / "output.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.jsonl"


class BatchStore:
    """The batches in ``folder``, which one server uses. Raises UsageError or ResourceError where it cannot be used."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._wall = wall
        with ExitStack() as opened:
            self._folder = opened.enter_context(DataFolder(folder))
            self._running = self._folder.inner("running")
            self._base = Database(folder / "batches.sqlite3", _SCHEMA, _VERSION, durable=True)
            opened.callback(self._base.close)
            self.table: Final = TenantTable(self._base, "batches", "record", _read, wall)
            self._mend()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def paths(self, id: str) -> BatchPaths:
        """The files of the batch; creates their folder."""
        folder = self._running / id
        with self._folder.guarded():
            folder.mkdir(mode=0o700, exist_ok=True)
        return BatchPaths(folder)

    def add(self, batch: BatchRecord) -> None:
        """Stores a new batch."""
        self._base.write(
            "INSERT INTO batches (id, tenant, created_at, ended, record) VALUES (?, ?, ?, ?, ?)",
            batch.id,
            batch.tenant,
            batch.created_at,
            batch.ended,
            _text(batch),
        )

    def save(self, batch: BatchRecord) -> None:
        """Stores a batch as it is now, and removes the files of one that has ended."""
        self._base.write("UPDATE batches SET ended = ?, record = ? WHERE id = ?", batch.ended, _text(batch), batch.id)
        if batch.ended:
            self.forget(batch.id)

    def forget(self, id: str) -> None:
        """Removes a batch's files."""
        shutil.rmtree(self._running / id, ignore_errors=True)

    def unfinished(self) -> list[BatchRecord]:
        """All that have not ended, in order of creation."""
        rows = self._base.rows("SELECT record FROM batches WHERE NOT ended ORDER BY number")
        return [_read(text) for (text,) in rows]

    def sweep(self) -> None:
        """Removes batches that ended long ago."""
        self._base.write("DELETE FROM batches WHERE ended AND created_at <= ?", self._wall() - KEPT_SECONDS)

    def _mend(self) -> None:
        """Removes files of batches that have ended or were never stored; only files with names of ours."""
        self.sweep()
        running = {batch.id for batch in self.unfinished()}
        for folder in self._running.iterdir():
            if folder.name not in running and _OURS.fullmatch(folder.name):
                self.forget(folder.name)


def _text(batch: BatchRecord) -> str:
    return msgspec.json.encode(batch).decode()


def _read(text: str) -> BatchRecord:
    return msgspec.json.decode(text, type=BatchRecord)
