"""Batches on the disk: their records in SQLite, and for those that have not ended a folder with input and journal.

Nothing here may be used by two threads at once.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold.api.fields import FieldError
from twofold.core.errors import NotFoundError, quoted
from twofold.server.batches.record import TRANSITIONS, BatchRecord
from twofold.server.storage.database import Database, Value
from twofold.server.storage.folder import DataFolder
from twofold.server.storage.paging import PageQuery

KEPT_SECONDS: Final = 30 * 86400
"""So long an ended batch can still be asked for."""
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
    """Where a batch that has not ended keeps its files: what it reads, what it has, and what it makes of that."""

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
    """The batches in ``folder``, which one server has. Raises UsageError or ResourceError where it cannot be used."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._wall = wall
        with ExitStack() as opened:
            self._folder = opened.enter_context(DataFolder(folder))
            self._running = self._folder.inner("running")
            self._base = Database(folder / "batches.sqlite3", _SCHEMA, _VERSION, durable=True)
            opened.callback(self._base.close)
            self._mend()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def paths(self, id: str) -> BatchPaths:
        """Where the batch of this id keeps its files; makes the folder."""
        folder = self._running / id
        with self._folder.told():
            folder.mkdir(mode=0o700, exist_ok=True)
        return BatchPaths(folder)

    def add(self, batch: BatchRecord) -> None:
        """Takes a new batch in."""
        self._base.write(
            "INSERT INTO batches (id, tenant, created_at, ended, record) VALUES (?, ?, ?, ?, ?)",
            batch.id,
            batch.tenant,
            batch.created_at,
            batch.ended,
            json.dumps(batch.as_data()),
        )

    def save(self, batch: BatchRecord) -> None:
        """Writes a batch as it is now; of one that ended nothing but the record stays."""
        self._base.write(
            "UPDATE batches SET ended = ?, record = ? WHERE id = ?", batch.ended, json.dumps(batch.as_data()), batch.id
        )
        if batch.ended:
            self.forget(batch.id)

    def forget(self, id: str) -> None:
        """Removes a batch's files."""
        shutil.rmtree(self._running / id, ignore_errors=True)

    def get(self, tenant: str, id: str) -> BatchRecord:
        """Raises NotFoundError."""
        return self._find(tenant, id)[1]

    def unfinished(self) -> list[BatchRecord]:
        """All that have not ended, in the order in which they were made."""
        return [
            _read(text) for (text,) in self._base.rows("SELECT record FROM batches WHERE NOT ended ORDER BY number")
        ]

    def page(self, tenant: str, query: PageQuery) -> tuple[list[BatchRecord], bool]:
        """A page of a tenant's batches, the newest first, and whether more follow."""
        clauses = ["tenant = ?"]
        values: list[Value] = [tenant]
        if query.after is not None:
            clauses.append("number < ?")
            values.append(self._after(tenant, query.after))
        rows = self._base.rows(
            f"SELECT record FROM batches WHERE {' AND '.join(clauses)} ORDER BY number DESC LIMIT ?",
            *values,
            query.limit + 1,
        )
        return [_read(text) for (text,) in rows[: query.limit]], len(rows) > query.limit

    def sweep(self) -> None:
        """Forgets what ended long ago."""
        self._base.write("DELETE FROM batches WHERE ended AND created_at <= ?", self._wall() - KEPT_SECONDS)

    def _find(self, tenant: str, id: str) -> tuple[int, BatchRecord]:
        found = self._base.rows("SELECT number, record FROM batches WHERE id = ? AND tenant = ?", id, tenant)
        if not found:
            raise NotFoundError(f"There is no batch {quoted(id)}.", hint="GET /v1/batches lists all batches.")
        number, text = found[0]
        return number, _read(text)

    def _after(self, tenant: str, id: str) -> int:
        try:
            return self._find(tenant, id)[0]
        except NotFoundError as error:
            raise FieldError(f"after names no batch: {quoted(id)}.", param="after") from error

    def _mend(self) -> None:
        """Removes the files of batches that ended, or that never came into the table. What has none of our names is
        not ours."""
        self.sweep()
        running = {batch.id for batch in self.unfinished()}
        for folder in self._running.iterdir():
            if folder.name not in running and _OURS.fullmatch(folder.name):
                self.forget(folder.name)


def _read(text: str) -> BatchRecord:
    batch = BatchRecord.from_data(json.loads(text))
    assert batch.status in TRANSITIONS, f"{batch.status!r} is no state of a batch"
    return batch
