"""/v1/batches: creates batches, runs them in the background, and reports their state.

    service = await BatchService.open(folder, files, run_body)      continues the batches of an earlier server
    batch   = await service.create(tenant, body, key=…)

Invariants
- A state is on disk before it is reported, so after a crash the next server continues from there.
- A line with a result in the journal is not run again.
- One batch of a tenant runs, its others wait in order of creation; tenants share the slots evenly.
- A full disk ends no batch: writing is retried until the batch expires.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from twofold.api.batch.journal import BatchTally, Journal
from twofold.api.batch.lines import BatchReader
from twofold.api.batch.run import BatchRun
from twofold.api.fields import FieldError
from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ConflictError, NotFoundError, QuotaError, ResourceError, quoted
from twofold.core.tasks import start_task
from twofold.server.batches.files import BatchLimits, check_input, write_results
from twofold.server.batches.record import (
    ID_PREFIX,
    TRANSITIONS,
    WINDOW_SECONDS,
    BatchOrder,
    BatchPaths,
    BatchRecord,
    BatchReply,
    BatchStore,
    LineError,
    Status,
)
from twofold.server.batches.run import BatchDispatcher, RunBody, place_of
from twofold.server.files.service import FileService, new_file_id
from twofold.server.storage.database import SingleThread
from twofold.server.storage.tenants import ObjectPage, PageQuery, Query, page_fields, read_query

DEFAULT_LIMITS: Final = BatchLimits()
RETRY_S: Final = 10.0
"""Delay before a failed write is retried."""
SWEEP_S: Final = 3600.0
UNDER_WAY: Final = ("validating", "in_progress")
GIVEN_UP: Final = {
    "cancelled": LineError("batch_cancelled", "The batch was cancelled before this line ran."),
    "expired": LineError("batch_expired", "The batch expired before this line ran."),
}


@dataclass(slots=True)
class _ActiveBatch:
    """A batch that has not ended. ``limit`` ends its work at expiry or cancellation; ``moving`` guards its status."""

    batch: BatchRecord
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    limit: asyncio.Timeout | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def count(self, tally: BatchTally) -> None:
        self.batch = replace(self.batch, tally=tally)


class BatchPage(ObjectPage, kw_only=True):
    """A page of batches."""

    data: list[BatchReply]


class BatchService:
    """The batches of all tenants. Methods raise NotFoundError, FieldError, ConflictError, QuotaError.

    Made by ``open``; ``close`` leaves unfinished batches to the next server.
    """

    def __init__(
        self,
        store: BatchStore,
        thread: SingleThread,
        files: FileService,
        run_body: RunBody,
        limits: BatchLimits,
        wall: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._store, self._thread, self._files, self._run_body = store, thread, files, run_body
        self._limits, self._wall, self._clock = limits, wall, clock
        self._slots = asyncio.Semaphore(limits.width)
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._live: dict[str, _ActiveBatch] = {}
        self._sweeping = start_task(self._sweep(), "expired files and batches")

    @classmethod
    async def open(
        cls,
        folder: Path,
        files: FileService,
        run_body: RunBody,
        *,
        limits: BatchLimits = DEFAULT_LIMITS,
        wall: Callable[[], float] = time.time,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the batches in ``folder``, in the file system of ``files``, and continues them.

        Raises UsageError if another server uses the folder, ResourceError if it cannot be used.
        """
        thread, store = await SingleThread.open("batches", BatchStore, folder, wall)
        service = cls(store, thread, files, run_body, limits, wall, clock or MonotonicClock())
        for batch in await thread.call(store.unfinished):
            service._begin(batch)
        return service

    async def close(self) -> None:
        """Ends all work at once; the next server runs unfinished lines again."""
        tasks = [self._sweeping, *(live.task for live in self._live.values() if live.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._thread.end(self._store.close)

    async def create(self, tenant: str, body: object, *, key: str = "") -> BatchReply:
        """POST /v1/batches. ``key`` is the id of the caller's API key."""
        order = BatchOrder.read(body)
        self._check_room(tenant)
        now = int(self._wall())
        batch = BatchRecord(
            id=ID_PREFIX + secrets.token_hex(12),
            tenant=tenant,
            key=key,
            endpoint=order.endpoint,
            input_file_id=order.input_file_id,
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            metadata=order.metadata,
            lifetime_s=None if order.output_expires_after is None else order.output_expires_after.seconds,
        )
        # A client that disconnects now has created its batch, or has not; nothing in between.
        return await asyncio.shield(self._admit(batch))

    async def page(self, tenant: str, query: Query) -> BatchPage:
        """GET /v1/batches with limit and after."""
        asked = read_query(PageQuery, query)
        batches, more = await self._thread.call(self._store.page, tenant, asked)
        return BatchPage(**page_fields([self._newest(batch).reply() for batch in batches], more))

    async def get(self, tenant: str, id: str) -> BatchReply:
        """GET /v1/batches/{id}."""
        return (await self._find(tenant, id)).reply()

    async def cancel(self, tenant: str, id: str) -> BatchReply:
        """POST /v1/batches/{id}/cancel: finished lines keep their results."""
        batch = await self._find(tenant, id)
        live = self._live.get(id)
        if live is not None:
            await self._move(live, "cancelling")
            batch = live.batch
        if batch.status not in ("cancelling", "cancelled"):
            raise ConflictError(f"A batch that is {batch.status} cannot be cancelled.")
        return batch.reply()

    async def _find(self, tenant: str, id: str) -> BatchRecord:
        return self._newest(await self._thread.call(self._store.get, tenant, id))

    def _newest(self, batch: BatchRecord) -> BatchRecord:
        live = self._live.get(batch.id)
        return batch if live is None else live.batch

    def _check_room(self, tenant: str) -> None:
        unfinished = sum(live.batch.tenant == tenant for live in self._live.values())
        if unfinished >= self._limits.unfinished:
            hint = "Retry when some have ended."
            raise QuotaError(f"{unfinished} batches have not ended yet.", retry_after_s=60.0, hint=hint)

    async def _admit(self, batch: BatchRecord) -> BatchReply:
        """Stores a new batch with its input, and starts it."""
        paths = await self._thread.call(self._store.paths, batch.id)
        try:
            await self._take_input(batch, paths)
            await self._thread.call(self._store.add, batch)
        except BaseException:
            await self._thread.call(self._store.forget, batch.id)
            raise
        return self._begin(batch).reply()

    async def _take_input(self, batch: BatchRecord, paths: BatchPaths) -> None:
        id = batch.input_file_id
        try:
            file = await self._files.link(batch.tenant, id, paths.source)
        except NotFoundError as error:
            message = f"There is no file {quoted(id)}."
            raise FieldError(message, param="input_file_id", code="not_found", hint=error.hint) from error
        if file.purpose != "batch":
            raise FieldError(
                f"The purpose of the file is {file.purpose}, not batch.",
                param="input_file_id",
                hint='Upload the requests with the purpose "batch".',
            )

    def _begin(self, batch: BatchRecord) -> BatchRecord:
        live = self._live[batch.id] = _ActiveBatch(batch)
        live.task = start_task(self._process(live), f"batch {batch.id}")
        return batch

    async def _process(self, live: _ActiveBatch) -> None:
        """Runs a batch until it has ended, and retries if the disk fails."""
        while not live.batch.ended:
            try:
                await self._advance(live)
            except Exception:  # a failure of the disk
                await asyncio.sleep(RETRY_S)
        del self._live[live.batch.id]

    async def _advance(self, live: _ActiveBatch) -> None:
        """Works on a batch, or finishes it. An internal error fails the batch. Raises the errors of a failing disk."""
        try:
            await (self._work(live) if live.batch.status in UNDER_WAY else self._finish(live))
        except Exception as error:
            if _is_disk_failure(error):
                raise
            logging.getLogger(__name__).error("batch %s: internal error: %s", live.batch.id, place_of(error))
            await self._fail(live, (LineError("server_error", "The server failed to process this batch."),))

    async def _work(self, live: _ActiveBatch) -> None:
        """Checks and runs a batch, until all lines have results, it expires, or it is cancelled."""
        left = live.batch.expires_at - self._wall()
        try:
            async with asyncio.timeout(max(left, 0.0)) as live.limit:
                if live.batch.status == "validating":
                    await self._check(live)
                if live.batch.status == "in_progress":
                    async with self._lanes[live.batch.tenant]:
                        await self._run(live)
        except TimeoutError:
            pass  # ``_finish`` gives up the other lines
        finally:
            live.limit = None
        if live.batch.status in UNDER_WAY:
            await self._move(live, "finalizing")

    async def _check(self, live: _ActiveBatch) -> None:
        paths = await self._thread.call(self._store.paths, live.batch.id)
        checked = await self._thread.drive(check_input(paths.source, live.batch.endpoint, self._limits))
        live.batch = replace(live.batch, lines=checked.lines, model=checked.model)
        if checked.errors:
            await self._fail(live, checked.errors)
        else:
            await self._move(live, "in_progress")

    async def _run(self, live: _ActiveBatch) -> None:
        batch, clock = live.batch, self._clock
        paths = await self._thread.call(self._store.paths, batch.id)
        reader = BatchReader((batch.endpoint,), self._limits.line_bytes, tenant=batch.tenant, key=batch.key)
        dispatcher = BatchDispatcher(
            lambda: BatchRun(paths.source, Journal(paths.journal, clock), reader, batch.lines),
            self._run_body,
            self._thread,
            self._slots,
            self._limits.width,
            live.count,
        )
        await dispatcher.run_all()

    async def _finish(self, live: _ActiveBatch) -> None:
        """Writes the results of a batch whose work has ended, and ends it."""
        batch = live.batch
        given_up: Status = "cancelled" if batch.status == "cancelling" else "expired"
        paths = await self._thread.call(self._store.paths, batch.id)
        results = await self._thread.drive(write_results(paths, self._limits.line_bytes, GIVEN_UP[given_up]))
        if results.tally.completed:
            name = f"{batch.id}_output.jsonl"
            await self._files.adopt(batch.output_file_id, batch.tenant, paths.output, name, batch.lifetime_s)
        if results.tally.completed < results.lines:
            name = f"{batch.id}_error.jsonl"
            await self._files.adopt(batch.error_file_id, batch.tenant, paths.errors, name, batch.lifetime_s)
        live.batch = replace(batch, tally=results.tally, lines=results.lines)
        await self._move(live, given_up if results.left or given_up == "cancelled" else "completed")

    async def _fail(self, live: _ActiveBatch, errors: tuple[LineError, ...]) -> None:
        live.batch = replace(live.batch, errors=errors)
        await self._move(live, "failed")

    async def _move(self, live: _ActiveBatch, status: Status) -> None:
        """Changes the status of a batch, and ends its work if it is cancelled.

        Does nothing if the batch may not change to ``status``, because another change was first.
        """
        async with live.moving:
            if status not in TRANSITIONS[live.batch.status]:
                return
            moved = live.batch.moved(status, self._wall())
            await self._thread.call(self._store.save, moved)
            live.batch = moved
        if status == "cancelling" and live.limit is not None and not live.limit.expired():
            live.limit.reschedule(asyncio.get_running_loop().time())

    async def _sweep(self) -> None:
        """Removes expired files and old batches, every SWEEP_S."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._files.sweep()
                await self._thread.call(self._store.sweep)
            except ResourceError as error:
                logging.getLogger(__name__).warning("expired files and batches could not be removed: %s", error)


def _is_disk_failure(error: Exception) -> bool:
    """Whether only the disk failed."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_disk_failure, error.exceptions))
    return isinstance(error, ResourceError | OSError)
