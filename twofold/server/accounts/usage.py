"""Sums of usage and cost by day (UTC), tenant, key, model and tier.

Requests that ended since the last write are in memory; ``run`` writes them once a second, in one transaction, so a
crash loses at most that second. Amounts of money are stored as text and added as decimals, so sums are exact.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, get_args

from twofold.core.errors import ParameterError, ResourceError, closest_match, quoted
from twofold.observe.accounting.bill import EXACT, TokenUsage
from twofold.observe.served import ServedRequest
from twofold.server.storage.database import Database
from twofold.server.storage.thread import SingleThread

Part = Literal["day", "tenant", "key", "model", "tier"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
DEFAULT_DAYS: Final = 400
"""Sums of earlier days are dropped."""
FIRST_ERROR: Final = 400
"""Statuses from here on are errors."""
VERSION: Final = 1
COUNTS: Final = (
    "requests",
    "failed",
    "cached_answers",
    "fresh",
    "cached",
    "written_5m",
    "written_30m",
    "written_1h",
    "output",
    "reasoning",
)
COLUMNS: Final = (*PARTS, "currency", *COUNTS, "machine_s", "cost")
SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS usage (
    {", ".join(f"{part} TEXT NOT NULL" for part in (*PARTS, "currency"))},
    {", ".join(f"{count} INTEGER NOT NULL" for count in COUNTS)},
    machine_s REAL NOT NULL,
    cost TEXT NOT NULL,
    PRIMARY KEY ({", ".join((*PARTS, "currency"))})
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class UsageKey:
    """What one row of sums is of. ``currency`` is "" for requests without a price."""

    day: str
    tenant: str
    key: str
    model: str
    tier: str
    currency: str


@dataclass(slots=True)
class Sums:
    """Counts of requests (all; those that failed; hits of the response cache) and of tokens.

    A prompt token is counted once, as fresh, cached or written. ``machine_s`` are seconds of steps.
    """

    requests: int = 0
    failed: int = 0
    cached_answers: int = 0
    fresh: int = 0
    cached: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0
    output: int = 0
    reasoning: int = 0
    machine_s: float = 0.0
    cost: Decimal = field(default_factory=Decimal)

    @classmethod
    def of(cls, served: ServedRequest) -> Sums:
        """Those of one request."""
        works = [work for report in served.reports for work in (report.record.prefill, report.record.decode)]
        return cls(
            requests=1,
            failed=int(served.status >= FIRST_ERROR),
            cached_answers=int(served.cached_answer),
            **asdict(TokenUsage.of(served.reports, served.written_tokens)),
            reasoning=served.reasoning_tokens,
            machine_s=sum(work.machine_s for work in works),
            cost=Decimal(0) if served.bill is None else served.bill.total,
        )

    def add(self, other: Sums) -> None:
        for each in fields(self):
            if each.name != "cost":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.cost = EXACT.add(self.cost, other.cost)

    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*COUNTS, "machine_s")} | {"cost": float(self.cost)}


class UsageStore:
    """The sums of the last ``days`` days in the file at ``path``, in memory for None.

    Raises ResourceError if the file cannot be used.
    """

    def __init__(self, path: Path | None, *, days: int = DEFAULT_DAYS) -> None:
        self._file = Database(path, SCHEMA, VERSION, durable=False)
        self._thread = SingleThread("usage")
        self._days = days
        self._pending: dict[UsageKey, Sums] = {}
        self._writing = asyncio.Lock()
        self.failure: str | None = None
        """Why the last write failed; its sums are written again."""

    def add(self, served: ServedRequest) -> None:
        """Counts a request that ended."""
        day = datetime.fromtimestamp(served.arrived_at + served.duration_s, UTC).date().isoformat()
        account = UsageKey(day, served.tenant, served.key, served.model, served.tier, served.currency)
        self._pending.setdefault(account, Sums()).add(Sums.of(served))

    async def run(self, every_s: float = 1.0) -> None:
        """Writes the counts every ``every_s`` seconds; ``failure`` says why a write failed."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.flush()
                self.failure = None
            except ResourceError as error:
                self.failure = str(error)

    async def flush(self) -> None:
        """Writes what was counted until now. Raises ResourceError if that fails; the counts are kept then."""
        await asyncio.shield(self._flush())  # the counts must not be lost when the caller is cancelled

    async def _flush(self) -> None:
        async with self._writing:
            taken, self._pending = self._pending, {}
            if not taken:
                return
            try:
                await self._thread.call(self._file.use, lambda connection: _write(connection, taken, self._days))
            except ResourceError:
                for account, sums in self._pending.items():
                    taken.setdefault(account, Sums()).add(sums)
                self._pending = taken
                raise

    async def data(
        self, tenant: str | None, *, by: Sequence[str] = ("model", "tier"), since: str | None = None
    ) -> dict[str, Any]:
        """Sums of a tenant (None: of all) from the day ``since`` on, grouped by the parts ``by``.

        Raises ParameterError for an unknown part or an invalid day, ResourceError if the file cannot be used.
        """
        parts, first = _parts(by), _day(since)
        await self.flush()
        rows = await self._thread.call(self._file.use, lambda connection: _read(connection, tenant, first))
        found: dict[tuple[str, ...], Sums] = {}
        for account, sums in rows:
            group = (*(getattr(account, part) for part in parts), account.currency)
            found.setdefault(group, Sums()).add(sums)
        names = (*parts, "currency")
        entries = [dict(zip(names, group, strict=True)) | found[group].data() for group in sorted(found)]
        return {"object": "twofold.usage", "since": since, "data": entries}

    async def close(self) -> None:
        """Writes the rest and closes the file. Raises ResourceError if that fails."""
        try:
            await self.flush()
        finally:
            self._thread.close()
            self._file.close()


def _write(connection: sqlite3.Connection, taken: Mapping[UsageKey, Sums], days: int) -> None:
    columns, marks = ", ".join(COLUMNS), ", ".join("?" * len(COLUMNS))
    where = " AND ".join(f"{part} = ?" for part in (*PARTS, "currency"))
    for account, added in taken.items():
        key = tuple(getattr(account, part) for part in (*PARTS, "currency"))
        sums = Sums()
        for row in connection.execute(f"SELECT {columns} FROM usage WHERE {where}", key):
            sums.add(_row(row)[1])
        sums.add(added)
        values = tuple(getattr(sums, count) for count in COUNTS)
        connection.execute(
            f"INSERT OR REPLACE INTO usage ({columns}) VALUES ({marks})",
            (*key, *values, sums.machine_s, str(sums.cost)),
        )
    oldest = date.fromisoformat(max(account.day for account in taken)) - timedelta(days=days)
    connection.execute("DELETE FROM usage WHERE day < ?", (oldest.isoformat(),))


def _read(connection: sqlite3.Connection, tenant: str | None, first: str) -> list[tuple[UsageKey, Sums]]:
    query = f"SELECT {', '.join(COLUMNS)} FROM usage WHERE day >= ? AND (? IS NULL OR tenant = ?)"
    return [_row(row) for row in connection.execute(query, (first, tenant, tenant))]


def _row(row: Sequence[Any]) -> tuple[UsageKey, Sums]:
    split = len(PARTS) + 1
    *counts, machine_s, cost = row[split:]
    values = dict(zip(COUNTS, counts, strict=True))
    return UsageKey(*row[:split]), Sums(**values, machine_s=machine_s, cost=Decimal(cost))


def _parts(by: Iterable[str]) -> list[str]:
    parts = list(dict.fromkeys(by))
    for part in parts:
        if part not in PARTS:
            close = closest_match(part, PARTS)
            hint = f"Did you mean {close!r}?" if close else None
            raise ParameterError(f"by must name some of {', '.join(PARTS)}, not {quoted(part)}.", param="by", hint=hint)
    return parts


def _day(since: str | None) -> str:
    if since is None:
        return ""
    try:
        return date.fromisoformat(since).isoformat()
    except ValueError as error:
        raise ParameterError(f"since must be a day such as 2026-11-21, not {quoted(since)}.", param="since") from error
