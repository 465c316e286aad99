"""The accounting of requests that ended: their bills, their records, the sums of usage, and the calls of observers.

A record is plain data, for ``"twofold": {"explain": true}`` and for ``GET /v1/twofold/requests/{id}``. Seconds are wall
time but for ``machine_s``, which is the request's part of the steps it ran in. Beside the seconds of a phase is the
least that this machine could have taken (``planner/predict/phase.py``), by which limit, and the share of it that was
reached. Counts are of what was computed: what a cache gave appears only as cached tokens. Money is rounded to what a
floating-point number holds.

Sums of usage and cost are by day (UTC), tenant, key, model and tier. Requests that ended since the last write are in
memory; ``UsageStore.run`` writes them once a second, in one transaction, so a crash loses at most that second. Amounts
of money are stored as text and added as decimals, so sums are exact.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, get_args

from twofold.core.errors import NotFoundError, ParameterError, ResourceError, closest_match, quoted
from twofold.core.record import PhaseWork, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.observe.accounting.bill import EXACT, Bill, TokenUsage, make_bill
from twofold.observe.accounting.prices import PriceSheet
from twofold.observe.served import ServedObserver, ServedRequest
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.planner.predict.steps import StepPredictor
from twofold.server.context import RequestContext
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


MAX_RECENT: Final = 1_000
MAX_RECENT_PROMPTS: Final = 8_000
"""Prompts of all recent requests; a prompt takes about 1.5 KiB, and one request may have thousands."""
MAX_PROMPTS_SHOWN: Final = 64
"""Prompts that a record shows one by one; its sums are of all."""


class RecentRequests:
    """The last ``most`` requests that ended, fewer if they have more than ``max_prompts`` together.

    A tenant sees its own; a name that a client gives its request finds no request of another tenant.
    """

    def __init__(self, most: int = MAX_RECENT, max_prompts: int = MAX_RECENT_PROMPTS) -> None:
        self._most = most
        self._max_prompts = max_prompts
        self._prompts = 0
        self._requests: OrderedDict[tuple[str, str], tuple[ServedRequest, StepPredictor | None]] = OrderedDict()

    def add(self, served: ServedRequest, steps: StepPredictor | None = None) -> None:
        """Keeps a request, without what grows with its completion; ``record_data`` is made on demand.

        ``steps`` predicts steps of its model on this machine; None if that was not measured.
        """
        name = (served.tenant, served.request_id)
        if (before := self._requests.pop(name, None)) is not None:
            self._prompts -= len(before[0].reports)
        self._prompts += len(served.reports)
        self._requests[name] = replace(served, gaps_s=sorted(served.gaps_s)[-1:]), steps
        while len(self._requests) > self._most or (self._prompts > self._max_prompts and len(self._requests) > 1):
            _, (oldest, _) = self._requests.popitem(last=False)
            self._prompts -= len(oldest.reports)

    def data(self, tenant: str, request_id: str) -> dict[str, Any]:
        """The record of a tenant's request. NotFoundError if it runs, never was, or is not among the last ones."""
        found = self._requests.get((tenant, request_id))
        if found is None:
            raise NotFoundError(
                f"No request {quoted(request_id)} ended recently.",
                hint=f"The last {self._most:,} are kept; ids are in the header x-request-id.",
            )
        return record_data(*found)

    def __len__(self) -> int:
        return len(self._requests)


@dataclass(frozen=True, slots=True)
class Accounting:
    """Accounts for each request once. Without a ``sheet`` nothing has a price."""

    sheet: PriceSheet | None
    recent: RecentRequests
    usage: UsageStore
    observers: Sequence[ServedObserver]

    def explain(self, context: RequestContext) -> dict[str, Any]:
        """The record of a request whose completion is whole, and that ends now."""
        self._complete(context)
        return record_data(context.record, context.steps)

    def close(self, context: RequestContext) -> None:
        """Accounts for a request that has ended."""
        self._complete(context)
        served = context.record
        if served.model:
            self.usage.add(served)
            self.recent.add(served, context.steps)
        for observer in self.observers:
            observer.on_served(served)

    def _complete(self, context: RequestContext) -> None:
        served = context.record
        served.duration_s = time.monotonic() - context.arrived
        if self.sheet is not None and served.reports:
            served.bill = make_bill(served.reports, served.written_tokens, self.sheet, served.model, served.tier)


def record_data(served: ServedRequest, steps: StepPredictor | None = None) -> dict[str, Any]:
    """The record of a request. Its prompts are in order; of many, the first MAX_PROMPTS_SHOWN are shown."""
    return {
        "id": served.request_id,
        "object": "twofold.request",
        "endpoint": served.endpoint,
        "model": served.model,
        "service_tier": served.tier,
        "stream": served.stream,
        "status": served.status,
        "error": served.error,
        "arrived_at": served.arrived_at,
        "seconds": served.duration_s,
        "first_token_s": served.first_token_s,
        "longest_gap_s": max(served.gaps_s, default=None),
        "cached_answer": served.cached_answer,
        "retries": served.retries,
        "tokens": _tokens(served),
        "prompts": [_prompt(report, steps) for report in served.reports[:MAX_PROMPTS_SHOWN]],
        "prompts_left_out": max(0, len(served.reports) - MAX_PROMPTS_SHOWN),
        "cost": None if served.bill is None else _bill(served.bill),
    }


def _bill(bill: Bill) -> dict[str, Any]:
    """A bill's lines and their sum. A price is of a million tokens, or of an hour."""
    return {
        "currency": bill.currency,
        "service_tier": bill.tier,
        "factor": float(bill.factor),
        "lines": [
            {
                "kind": line.kind,
                "quantity": int(line.quantity) if line.unit == "token" else float(line.quantity),
                "unit": line.unit,
                "price": float(line.price),
                "amount": float(line.amount),
            }
            for line in bill.lines
        ],
        "total": float(bill.total),
    }


def _tokens(served: ServedRequest) -> dict[str, Any]:
    written = {ttl: served.written_tokens.get(seconds, 0) for ttl, seconds in TTL_SECONDS.items()}
    return {
        "prompt": served.prompt_tokens,
        "cached": served.cached_tokens,
        "fresh": served.prompt_tokens - served.cached_tokens,
        "written": {ttl: tokens for ttl, tokens in written.items() if tokens},
        "output": served.output_tokens,
        "reasoning": served.reasoning_tokens,
    }


def _prompt(report: RequestMetrics, steps: StepPredictor | None) -> dict[str, Any]:
    record, count = report.record, report.completions
    return {
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "output_tokens": report.output_tokens,
        "finish_reasons": list(report.finish_reasons),
        "queue_s": report.queue_s,
        "prefill_s": report.prefill_s,
        "decode_s": report.decode_s,
        "ttft_s": report.ttft_s,
        "prefill": _phase(record.prefill, report.prefill_s, steps, count),
        "decode": _phase(record.decode, report.decode_s, steps, count),
        "stalls_s": {cause.name.lower(): seconds for cause, seconds in record.stalls.items()},
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed,
        "swapped_blocks": record.swapped,
        **_prediction(record),
    }


def _phase(work: PhaseWork, seconds: float, steps: StepPredictor | None, completions: int) -> dict[str, Any]:
    """What was done in a phase. ``rows_share`` is the part of its steps' rows that were the request's own."""
    counts = {
        "rows": work.rows,
        "steps": work.steps,
        "rows_share": work.share / work.steps if work.steps else None,
        "machine_s": work.machine_s,
    }
    if steps is None or not work.rows:
        return counts
    done = PhaseCost.of(work, steps.cost)
    floor = phase_floor(work, steps, completions)
    return counts | {
        "flops": done.flops,
        "bytes": {
            "weights": round(done.weight_bytes),
            "kv_read": done.kv_read_bytes,
            "kv_written": done.kv_written_bytes,
        },
        "least_s": floor.seconds,
        "bound": floor.bound,
        "roofline_share": floor.share(seconds),
    }


def _prediction(record: SequenceRecord) -> dict[str, float | None]:
    """Seconds of its steps beside the predicted ones; an error above 0 means that the prediction was longer."""
    phases = (record.prefill, record.decode)
    took = sum(work.seconds - work.unpredicted_s for work in phases)
    predicted = sum(work.predicted_s for work in phases)
    known = took > 0 and predicted > 0
    return {
        "steps_s": sum(work.seconds for work in phases),
        "predicted_s": predicted if known else None,
        "prediction_error": predicted / took - 1 if known else None,
    }
