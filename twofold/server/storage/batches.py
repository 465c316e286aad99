"""Batches on disk: records in SQLite, and a folder with input and journal for each batch that has not ended."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from twofold.server.batches.record import BatchRecord
from twofold.server.storage.paging import TenantStore

KEPT_SECONDS: Final = 30 * 86400
"""How long after its creation an ended batch can be queried."""
ID_PREFIX: Final = "batch_"
_OURS: Final = re.compile(f"{ID_PREFIX}[0-9a-f]{{24}}")
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

    source: Path
    journal: Path
    output: Path
    errors: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        return cls(*(folder / f"{name}.jsonl" for name in ("input", "journal", "output", "errors")))


class BatchStore(TenantStore[BatchRecord]):
    """The batches in ``folder``; ``wall`` returns seconds since 1970."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        super().__init__(folder, "running", "batches", _SCHEMA, "record", _record, wall)

    def paths(self, id: str) -> BatchPaths:
        """The files of the batch; creates their folder."""
        folder = self._inner / id
        with self.folder.guarded():
            folder.mkdir(mode=0o700, exist_ok=True)
        return BatchPaths.of(folder)

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
        shutil.rmtree(self._inner / id, ignore_errors=True)

    def unfinished(self) -> list[BatchRecord]:
        """All that have not ended, in order of creation."""
        rows = self._base.rows("SELECT record FROM batches WHERE NOT ended ORDER BY number")
        return [_record(text) for (text,) in rows]

    def sweep(self) -> None:
        """Removes batches that ended long ago."""
        self._base.write("DELETE FROM batches WHERE ended AND created_at <= ?", self._now() - KEPT_SECONDS)

    def _mend(self) -> None:
        self.sweep()
        running = {batch.id for batch in self.unfinished()}
        for folder in self._inner.iterdir():
            if folder.name not in running and _OURS.fullmatch(folder.name):
                self.forget(folder.name)


def _text(batch: BatchRecord) -> str:
    return msgspec.json.encode(batch).decode()


def _record(text: str) -> BatchRecord:
    return msgspec.json.decode(text, type=BatchRecord)
