"""Accounts for requests that ended: their bills, their records, sums of usage, and the calls of observers.

Sums of usage and cost are by day (UTC), tenant, key, model and tier. Requests that ended since the last write are in
memory; ``UsageStore.run`` writes them once a second, in one transaction, so a crash loses at most that second. Amounts
of money are stored as text and added as decimals, so sums are exact.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from msgspec import UNSET, UnsetType

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.errors import NotFoundError, ParameterError, ResourceError, closest_match, quoted
from twofold.core.report import RequestMetrics
from twofold.observe.billing import EXACT, PriceSheet, TokenUsage, make_bill
from twofold.observe.served import ServedObserver, ServedRequest
from twofold.planner.predict.steps import StepPredictor
from twofold.server.context import RequestContext
from twofold.server.estimates import Estimates
from twofold.server.records import RecentPage, RequestRecord, record_data, request_summary
from twofold.server.reference_prices import ReferencePrices
from twofold.server.storage.database import Database, SingleThread

log = logging.getLogger("twofold.serve")
Part = Literal["day", "tenant", "key", "model", "tier"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
DEFAULT_DAYS: Final = 400
"""Sums of earlier days are dropped."""
FIRST_ERROR: Final = 400
"""Statuses from here on are errors."""
VERSION: Final = 1


class UsageCounts(ReplyObject, kw_only=True):
    """Requests and tokens. ``requests`` includes ``failed`` ones and ``cached_answers``, those completed from the
    response cache.

    A prompt token is counted once, as fresh, cached, loaded from the KV store or written. ``machine_s`` are seconds of
    steps.
    """

    requests: NonNegativeInt = 0
    failed: NonNegativeInt = 0
    cached_answers: NonNegativeInt = 0
    fresh: NonNegativeInt = 0
    cached: NonNegativeInt = 0
    loaded: NonNegativeInt = 0
    written_5m: NonNegativeInt = 0
    written_30m: NonNegativeInt = 0
    written_1h: NonNegativeInt = 0
    written_24h: NonNegativeInt = 0
    output: NonNegativeInt = 0
    reasoning: NonNegativeInt = 0
    machine_s: NonNegativeFloat = 0.0


COUNTS: Final = tuple(name for name in UsageCounts.__struct_fields__ if name != "machine_s")
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


class UsageKey(NamedTuple):
    """The key of a row of sums. ``currency`` is "" for requests without a price."""

    day: str
    tenant: str
    key: str
    model: str
    tier: str
    currency: str


class UsageEntry(UsageCounts, kw_only=True):
    """Sums of one group of requests; it has the values of the fields that requests are grouped by."""

    day: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    currency: str
    cost: NonNegativeFloat


class UsageReply(ReplyObject, kw_only=True):
    """Sums of a tenant since a day."""

    object: Literal["twofold.usage"] = "twofold.usage"
    since: str | None
    data: list[UsageEntry]


class Sums(UsageCounts, kw_only=True):
    """Counts and the exact cost."""

    cost: Decimal = Decimal()

    @classmethod
    def of(cls, served: ServedRequest) -> Sums:
        """The sums of one request."""
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
        for name in UsageCounts.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cost = EXACT.add(self.cost, other.cost)

    def entry(self, parts: Mapping[str, Any]) -> UsageEntry:
        """The sums under the values of ``parts``."""
        counts = {name: getattr(self, name) for name in UsageCounts.__struct_fields__}
        return UsageEntry(**counts, **parts, cost=float(self.cost))


class UsageStore:
    """The sums of the last ``days`` days in the file at ``path``; in memory if it is None.

    Raises ResourceError if the file cannot be used.
    """

    def __init__(self, path: Path | None, *, days: int = DEFAULT_DAYS) -> None:
        self._file = Database(path, SCHEMA, VERSION, durable=False)
        self._file.use(_add_columns)
        self._thread = SingleThread("usage")
        self._days = days
        self._pending: dict[UsageKey, Sums] = {}
        self._writing = asyncio.Lock()
        self._failed = False

    def add(self, served: ServedRequest) -> None:
        """Counts a request that ended."""
        day = datetime.fromtimestamp(served.arrived_at + served.duration_s, UTC).date().isoformat()
        account = UsageKey(day, served.tenant, served.key, served.model, served.tier, served.currency)
        self._pending.setdefault(account, Sums()).add(Sums.of(served))

    async def run(self, every_s: float = 1.0) -> None:
        """Writes the counts every ``every_s`` seconds. Those that a failed write lost are written the next time."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.flush()
                self._failed = False
            except ResourceError as error:
                if not self._failed:
                    log.warning("sums of usage cannot be written now: %s", error)
                self._failed = True

    async def flush(self) -> None:
        """Writes all counts. Raises ResourceError if that fails, and keeps the counts for the next write."""
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

    async def data(self, tenant: str, *, by: Sequence[str] = ("model", "tier"), since: str | None = None) -> UsageReply:
        """Sums of a tenant from the day ``since`` on, grouped by the parts ``by``.

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
        entries = [found[group].entry(dict(zip(names, group, strict=True))) for group in sorted(found)]
        return UsageReply(since=since, data=entries)

    async def close(self) -> None:
        """Writes the remaining counts and closes the file. Raises ResourceError if that fails."""
        try:
            await self.flush()
        finally:
            self._thread.close()
            self._file.close()


def _write(connection: sqlite3.Connection, taken: Mapping[UsageKey, Sums], days: int) -> None:
    columns, marks = ", ".join(COLUMNS), ", ".join("?" * len(COLUMNS))
    where = " AND ".join(f"{part} = ?" for part in UsageKey._fields)
    for account, added in taken.items():
        sums = Sums()
        for row in connection.execute(f"SELECT {columns} FROM usage WHERE {where}", account):
            sums.add(_row(row)[1])
        sums.add(added)
        values = tuple(getattr(sums, count) for count in COUNTS)
        connection.execute(
            f"INSERT OR REPLACE INTO usage ({columns}) VALUES ({marks})",
            (*account, *values, sums.machine_s, str(sums.cost)),
        )
    oldest = date.fromisoformat(max(account.day for account in taken)) - timedelta(days=days)
    connection.execute("DELETE FROM usage WHERE day < ?", (oldest.isoformat(),))


def _add_columns(connection: sqlite3.Connection) -> None:
    """Adds the columns that a file of an earlier Twofold lacks."""
    known = {row[1] for row in connection.execute("PRAGMA table_info(usage)")}
    for count in COUNTS:
        if count not in known:
            connection.execute(f"ALTER TABLE usage ADD COLUMN {count} INTEGER NOT NULL DEFAULT 0")


def _read(connection: sqlite3.Connection, tenant: str, first: str) -> list[tuple[UsageKey, Sums]]:
    query = f"SELECT {', '.join(COLUMNS)} FROM usage WHERE day >= ? AND tenant = ?"
    return [_row(row) for row in connection.execute(query, (first, tenant))]


def _row(row: Sequence[Any]) -> tuple[UsageKey, Sums]:
    split = len(UsageKey._fields)
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


MAX_RECENT: Final = 1_000
MAX_RECENT_PROMPTS: Final = 8_000
"""Prompts of all recent requests; a prompt takes about 1.5 KiB, and one request may have thousands."""
MAX_TIMED_TOKENS: Final = 200_000
"""Tokens and steps of all recent timelines; each takes about 300 bytes."""


class RecentRequests:
    """The last ``max_requests`` requests that ended, fewer if they have more than ``max_prompts`` together. The oldest
    lose their timelines, if those have more than ``max_timed`` tokens and steps together.

    A tenant finds only its own, even if a client chooses the request id of another tenant's request.
    """

    def __init__(
        self,
        max_requests: int = MAX_RECENT,
        max_prompts: int = MAX_RECENT_PROMPTS,
        max_timed: int = MAX_TIMED_TOKENS,
    ) -> None:
        self._max_requests = max_requests
        self._max_prompts = max_prompts
        self._max_timed = max_timed
        self._prompts = 0
        self._timed: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._requests: OrderedDict[tuple[str, str], tuple[ServedRequest, StepPredictor | None]] = OrderedDict()

    def add(self, served: ServedRequest, steps: StepPredictor | None = None) -> None:
        """Keeps a request, but of the gaps between its tokens only the longest.

        ``steps`` predicts steps of its model on this machine; None if the machine was not measured.
        """
        name = (served.tenant, served.request_id)
        if (before := self._requests.pop(name, None)) is not None:
            self._prompts -= len(before[0].reports)
        self._prompts += len(served.reports)
        self._requests[name] = replace(served, gaps_s=sorted(served.gaps_s)[-1:]), steps
        while (kept := len(self._requests)) > self._max_requests or (self._prompts > self._max_prompts and kept > 1):
            _, (oldest, _) = self._requests.popitem(last=False)
            self._prompts -= len(oldest.reports)
            self._timed.pop((oldest.tenant, oldest.request_id), None)
        self._bound_timelines(name)

    def _bound_timelines(self, name: tuple[str, str]) -> None:
        """Counts the timelines of a request that was added, and drops the oldest ones beyond the limit."""
        self._timed.pop(name, None)
        served, _ = self._requests[name]
        size = sum(_timed(report) for report in served.reports)
        if size:
            self._timed[name] = size
        while sum(self._timed.values()) > self._max_timed:
            oldest, _ = self._timed.popitem(last=False)
            served, steps = self._requests[oldest]
            reports = tuple(replace(report, timeline=None) for report in served.reports)
            self._requests[oldest] = replace(served, reports=reports), steps

    def page(self, tenant: str, limit: int, before: str | None) -> RecentPage:
        """Up to ``limit`` of a tenant's requests, newest first: those that ended before ``before``, if that is given.
        Raises ParameterError for an unknown id."""
        mine = [served for (owner, _), (served, _) in reversed(self._requests.items()) if owner == tenant]
        if before is not None:
            place = next((place for place, served in enumerate(mine) if served.request_id == before), None)
            if place is None:
                raise ParameterError(f"No request {quoted(before)} ended recently.", param="before")
            mine = mine[place + 1 :]
        return RecentPage(data=[request_summary(served) for served in mine[:limit]], has_more=len(mine) > limit)

    def data(self, tenant: str, request_id: str) -> RequestRecord:
        """The record of a tenant's request. Raises NotFoundError if it has not ended, or is not among the last ones."""
        found = self._requests.get((tenant, request_id))
        if found is None:
            raise NotFoundError(
                f"No request {quoted(request_id)} ended recently.",
                hint=f"The last {self._max_requests:,} are kept; ids are in the header x-request-id.",
            )
        return record_data(*found)


def _timed(report: RequestMetrics) -> int:
    """Tokens and steps of a report's timeline."""
    made = report.timeline
    return 0 if made is None else report.output_tokens + len(made.steps.number)


@dataclass(frozen=True, slots=True)
class Accounting:
    """Accounts for each request once. Without a price ``sheet`` requests have no bill."""

    sheet: PriceSheet | None
    recent: RecentRequests
    usage: UsageStore
    observers: Sequence[ServedObserver]
    references: ReferencePrices
    estimates: Estimates

    def explain(self, context: RequestContext) -> RequestRecord:
        """The record of a request that ends now: its completion is whole, but not all of it was sent."""
        self._complete(context)
        return record_data(context.record, context.steps)

    def close(self, context: RequestContext) -> None:
        """Accounts for a request that has ended."""
        self._complete(context)
        served = context.record
        if served.model:
            self.usage.add(served)
            self.recent.add(served, context.steps)
            self.estimates.learn(served.model, served.reports, context.estimated_ttft_s)
        for observer in self.observers:
            observer.on_served(served)

    def _complete(self, context: RequestContext) -> None:
        served = context.record
        served.duration_s = time.monotonic() - context.arrived
        if self.sheet is not None and served.reports:
            served.bill = make_bill(served.reports, served.written_tokens, self.sheet, served.model, served.tier)
        if context.references and served.reports:
            usage = TokenUsage.of(served.reports, served.written_tokens)
            at = datetime.fromtimestamp(served.arrived_at, UTC)
            served.reference_bills = self.references.bills(context.references, usage, at)
