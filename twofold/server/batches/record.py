"""A batch as the server stores and reports it.

Records are in SQLite; a batch that has not ended has a folder with its input and its journal.

Invariants
- The status changes only along TRANSITIONS; the time of each change is stored.
- ``output_file_id`` and ``error_file_id`` are reported once the batch has ended; before, the files do not exist.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta

from twofold.api.batch.journal import EMPTY_TALLY, BatchTally
from twofold.api.body import NonNegativeInt, ReplyObject, RequestObject
from twofold.api.openai.bodies import Metadata
from twofold.api.openai.replies import OutputDetails, PromptDetails, ResponseUsage
from twofold.server.files.form import FileLifetime
from twofold.server.storage.tenants import TenantStore

WINDOW_SECONDS: Final = 86400
MAX_ID_CHARS: Final = 256
BatchEndpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    "validating": frozenset({"failed", "in_progress", "finalizing", "cancelling"}),
    "in_progress": frozenset({"failed", "finalizing", "cancelling"}),
    "finalizing": frozenset({"failed", "completed", "expired"}),
    "cancelling": frozenset({"failed", "cancelled"}),
    "failed": frozenset(),
    "completed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
"""The next statuses of each status. A batch that expires before its first line goes from validating to finalizing."""
MOMENTS: Final = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
)  # fmt: skip
"""Statuses whose times are reported, in fields such as in_progress_at."""
KEPT_SECONDS: Final = 30 * 86400
"""Seconds after its creation in which an ended batch can be queried."""
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


class BatchOrder(RequestObject):
    """The body of POST /v1/batches. ``metadata`` is returned unchanged."""

    input_file_id: Annotated[str, Meta(max_length=MAX_ID_CHARS)]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: FileLifetime | None = None


class LineError(ReplyObject):
    """An error in the input of a batch. ``line`` counts from 1; None for the whole input."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineErrors(ReplyObject, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: Sequence[LineError]


class BatchCounts(ReplyObject):
    """Numbers of lines of a batch."""

    total: NonNegativeInt
    completed: NonNegativeInt
    failed: NonNegativeInt


class BatchReply(ReplyObject, kw_only=True):
    """OpenAI's batch object."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: NonNegativeInt
    expires_at: NonNegativeInt
    in_progress_at: NonNegativeInt | None
    finalizing_at: NonNegativeInt | None
    completed_at: NonNegativeInt | None
    failed_at: NonNegativeInt | None
    expired_at: NonNegativeInt | None
    cancelling_at: NonNegativeInt | None
    cancelled_at: NonNegativeInt | None
    request_counts: BatchCounts
    usage: ResponseUsage
    metadata: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch. Times are in seconds since 1970.

    key            id of the API key that created it, "" without keys
    expires_at     when unfinished lines are given up
    lifetime_s     seconds until its output files expire; None: they do not
    lines          number of lines of the input; 0 until they are counted
    model          model of all lines; None if they name different ones, or none
    tally          sums over finished lines, stored at each change of status
    output_file_id, error_file_id   reserved at creation
    """

    id: str
    tenant: str
    key: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    output_file_id: str
    error_file_id: str
    metadata: Mapping[str, str] | None = None
    lifetime_s: int | None = None
    status: Status = "validating"
    lines: int = 0
    model: str | None = None
    tally: BatchTally = EMPTY_TALLY
    errors: tuple[LineError, ...] = ()
    moments: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return not TRANSITIONS[self.status]

    def moved(self, status: Status, now: float) -> Self:
        """The batch with another status, since ``now``."""
        assert status in TRANSITIONS[self.status], f"a batch does not go from {self.status} to {status}"
        return replace(self, status=status, moments={**self.moments, status: int(now)})

    def reply(self) -> BatchReply:
        """OpenAI's batch object."""
        tally, written = self.tally, self.ended and self.status != "failed"
        moments: dict[str, Any] = {f"{name}_at": self.moments.get(name) for name in MOMENTS}
        return BatchReply(
            id=self.id,
            endpoint=self.endpoint,
            model=self.model,
            errors=LineErrors(data=self.errors) if self.errors else None,
            input_file_id=self.input_file_id,
            status=self.status,
            output_file_id=self.output_file_id if written and tally.completed else None,
            error_file_id=self.error_file_id if written and tally.completed < self.lines else None,
            created_at=self.created_at,
            expires_at=self.expires_at,
            **moments,
            request_counts=BatchCounts(self.lines, tally.completed, tally.failed),
            usage=ResponseUsage(
                input_tokens=tally.input_tokens,
                input_tokens_details=PromptDetails(cached_tokens=tally.cached_tokens),
                output_tokens=tally.output_tokens,
                output_tokens_details=OutputDetails(tally.reasoning_tokens),
                total_tokens=tally.input_tokens + tally.output_tokens,
            ),
            metadata=None if self.metadata is None else dict(self.metadata),
        )


@dataclass(frozen=True, slots=True)
class BatchPaths:
    """The files of a batch that has not ended."""

    source: Path
    journal: Path
    output: Path
    errors: Path


class BatchStore(TenantStore[BatchRecord]):
    """The batches in ``folder``; ``wall`` returns seconds since 1970."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        super().__init__(folder, "running", "batches", _SCHEMA, "record", _record, wall)

    def paths(self, id: str) -> BatchPaths:
        """The files of the batch; creates their folder."""
        folder = self._inner / id
        with self.folder.guarded():
            folder.mkdir(mode=0o700, exist_ok=True)
        return BatchPaths(*(folder / f"{name}.jsonl" for name in ("input", "journal", "output", "errors")))

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
        """Stores the present state of a batch; removes its files if it has ended."""
        self._base.write("UPDATE batches SET ended = ?, record = ? WHERE id = ?", batch.ended, _text(batch), batch.id)
        if batch.ended:
            self.forget(batch.id)

    def forget(self, id: str) -> None:
        """Removes a batch's files."""
        shutil.rmtree(self._inner / id, ignore_errors=True)

    def unfinished(self) -> list[BatchRecord]:
        """All batches that have not ended, in order of creation."""
        rows = self._base.rows("SELECT record FROM batches WHERE NOT ended ORDER BY number")
        return [_record(text) for (text,) in rows]

    def sweep(self) -> None:
        """Removes batches that ended long ago."""
        self._base.write("DELETE FROM batches WHERE ended AND created_at <= ?", self._now() - KEPT_SECONDS)

    def _recover(self) -> None:
        self.sweep()
        running = {batch.id for batch in self.unfinished()}
        for folder in self._inner.iterdir():
            if folder.name not in running and _OURS.fullmatch(folder.name):
                self.forget(folder.name)


def _text(batch: BatchRecord) -> str:
    return msgspec.json.encode(batch).decode()


def _record(text: str) -> BatchRecord:
    return msgspec.json.decode(text, type=BatchRecord)
