"""/v1/batches: takes batches in, carries each from state to state in the background, and tells how far they are.

    service = await BatchService.open(folder, files, run_body)      goes on with what an earlier server left
    told    = await service.create(tenant, body, key=…)

Laws
- What a batch was told to be is on the disk before anybody hears of it; so a killed server goes on where it was.
- A line is answered once: what the journal holds is not run again.
- Of one tenant one batch runs, the others wait in the order in which they were made; tenants share the slots evenly.
- A disk that takes nothing stops no batch: it is tried again until the batch's time is up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, get_args

from twofold.api.fields import FieldError
from twofold.core.clock import Clock, MonotonicClock
from twofold.core.errors import ConflictError, NotFoundError, QuotaError, ResourceError, quoted
from twofold.server.batches.body import WINDOW_SECONDS, BatchEndpoint, BatchOrder
from twofold.server.batches.check import BatchLimits, check_input
from twofold.server.batches.record import TRANSITIONS, BatchRecord, BatchTally, LineError, Status
from twofold.server.batches.results import write_results
from twofold.server.batches.run import BatchRun, RunBody, place_of
from twofold.server.files.service import FileService
from twofold.server.storage.batches import ID_PREFIX, BatchPaths, BatchStore
from twofold.server.storage.files import new_file_id
from twofold.server.storage.paging import PageQuery, page_of
from twofold.server.storage.thread import SingleThread

ENDPOINTS: Final = get_args(BatchEndpoint)
DEFAULT_LIMITS: Final = BatchLimits()
RETRY_S: Final = 10.0
"""After that, what the disk did not take is tried again."""
SWEEP_S: Final = 3600.0
DEFAULT_LISTED: Final = 20
MAX_LISTED: Final = 100
GIVEN_UP: Final = {
    "cancelled": LineError("batch_cancelled", "The batch was cancelled before this line was answered."),
    "expired": LineError("batch_expired", "The batch expired before this line was answered."),
}


@dataclass(slots=True)
class _Live:
    """A batch that has not ended. ``limit`` ends its work when its time is up, or when it is cancelled; it goes from
    state to state under ``moving``.
    """

    batch: BatchRecord
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    limit: asyncio.Timeout | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def tell(self, tally: BatchTally) -> None:
        self.batch = replace(self.batch, tally=tally)


class BatchService:
    """The batches of all tenants. Methods raise TwofoldError: NotFoundError, FieldError, ConflictError, QuotaError.

    Made by ``open``; ``close`` leaves what is unfinished to the next one.
    """

    def __init__(
        self,
        store: BatchStore,
        thread: SingleThread,
        files: FileService,
        run_body: RunBody,
        endpoints: Collection[str],
        limits: BatchLimits,
        wall: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._store, self._thread, self._files, self._run_body = store, thread, files, run_body
        self._endpoints, self._limits, self._wall, self._clock = endpoints, limits, wall, clock
        self._slots = asyncio.Semaphore(limits.width)
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._live: dict[str, _Live] = {}
        self._sweeping = asyncio.create_task(self._sweep())

    @classmethod
    async def open(
        cls,
        folder: Path,
        files: FileService,
        run_body: RunBody,
        *,
        endpoints: Collection[str] = ENDPOINTS,
        limits: BatchLimits = DEFAULT_LIMITS,
        wall: Callable[[], float] = time.time,
        clock: Clock | None = None,
    ) -> Self:
        """Opens the batches in ``folder``, which lies in the file system of ``files``, and goes on with them.

        Raises UsageError where another server uses the folder, ResourceError where it cannot be used.
        """
        thread = SingleThread("batches")
        try:
            store = await thread.call(BatchStore, folder, wall)
        except BaseException:
            thread.close()
            raise
        service = cls(store, thread, files, run_body, endpoints, limits, wall, clock or MonotonicClock())
        for batch in await thread.call(store.unfinished):
            service._begin(batch)
        return service

    async def close(self) -> None:
        """Ends all work at once; lines that were being answered are answered by the next server."""
        tasks = [self._sweeping, *(live.task for live in self._live.values() if live.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._thread.call(self._store.close)
        self._thread.close()

    async def create(self, tenant: str, body: object, *, key: str = "") -> dict[str, Any]:
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
        # A client that goes away now has made its batch, or has not; nothing in between.
        return await asyncio.shield(self._admit(batch))

    async def page(self, tenant: str, query: Mapping[str, str]) -> dict[str, Any]:
        """GET /v1/batches with limit and after."""
        asked = PageQuery.read(query, default=DEFAULT_LISTED, most=MAX_LISTED)
        batches, more = await self._thread.call(self._store.page, tenant, asked)
        return page_of([self._newest(batch).as_object() for batch in batches], more)

    async def get(self, tenant: str, id: str) -> dict[str, Any]:
        """GET /v1/batches/{id}."""
        return (await self._find(tenant, id)).as_object()

    async def cancel(self, tenant: str, id: str) -> dict[str, Any]:
        """POST /v1/batches/{id}/cancel: what is answered stays, the rest is given up."""
        batch = await self._find(tenant, id)
        live = self._live.get(id)
        if live is not None:
            await self._move(live, "cancelling")
            batch = live.batch
        if batch.status not in ("cancelling", "cancelled"):
            raise ConflictError(f"A batch that is {batch.status} cannot be cancelled.")
        return batch.as_object()

    async def _find(self, tenant: str, id: str) -> BatchRecord:
        return self._newest(await self._thread.call(self._store.get, tenant, id))

    def _newest(self, batch: BatchRecord) -> BatchRecord:
        live = self._live.get(batch.id)
        return batch if live is None else live.batch

    def _check_room(self, tenant: str) -> None:
        unfinished = sum(live.batch.tenant == tenant for live in self._live.values())
        if unfinished >= self._limits.unfinished:
            raise QuotaError(f"{unfinished} batches have not ended yet.", retry_after_s=60.0, hint="Wait for some.")

    async def _admit(self, batch: BatchRecord) -> dict[str, Any]:
        """Gives a new batch its input and its place in the table; then it begins."""
        paths = await self._thread.call(self._store.paths, batch.id)
        try:
            await self._take_input(batch, paths)
            await self._thread.call(self._store.add, batch)
        except BaseException:
            await self._thread.call(self._store.forget, batch.id)
            raise
        return self._begin(batch).as_object()

    async def _take_input(self, batch: BatchRecord, paths: BatchPaths) -> None:
        id = batch.input_file_id
        try:
            file = await self._files.link(batch.tenant, id, paths.source)
        except NotFoundError as error:
            raise FieldError(
                f"There is no file {quoted(id)}.", param="input_file_id", code="not_found", hint=error.hint
            ) from error
        if file.purpose != "batch":
            raise FieldError(
                f"The file was made for {file.purpose}, not for batch.",
                param="input_file_id",
                hint='Upload the requests with the purpose "batch".',
            )

    def _begin(self, batch: BatchRecord) -> BatchRecord:
        live = self._live[batch.id] = _Live(batch)
        live.task = asyncio.create_task(self._carry(live))
        return batch

    async def _carry(self, live: _Live) -> None:
        """Carries a batch to its end."""
        while not live.batch.ended:
            try:
                await self._advance(live)
            except Exception as error:  # one batch that fails is no reason for others to
                if _is_of_disk(error):
                    await asyncio.sleep(RETRY_S)
                else:
                    logging.getLogger(__name__).error("batch %s failed: %s", live.batch.id, place_of(error))
                    await self._fail(live, (LineError("server_error", "The server failed to process this batch."),))
        del self._live[live.batch.id]

    async def _advance(self, live: _Live) -> None:
        if live.batch.status in ("validating", "in_progress"):
            await self._work(live)
        else:
            await self._finish(live)

    async def _work(self, live: _Live) -> None:
        """Checks and answers a batch, until all is done, its time is up, or it is cancelled."""
        left = live.batch.expires_at - self._wall()
        try:
            async with asyncio.timeout(max(left, 0.0)) as live.limit:
                if live.batch.status == "validating":
                    await self._check(live)
                if live.batch.status == "in_progress":
                    async with self._lanes[live.batch.tenant]:
                        await self._run(live)
        except TimeoutError:
            pass  # what is left is given up
        finally:
            live.limit = None
        if live.batch.status in ("validating", "in_progress"):
            await self._move(live, "finalizing")

    async def _check(self, live: _Live) -> None:
        paths = await self._thread.call(self._store.paths, live.batch.id)
        checked = await self._thread.drive(check_input(paths.source, live.batch.endpoint, self._limits))
        live.batch = replace(live.batch, lines=checked.lines, model=checked.model)
        if checked.errors:
            await self._fail(live, checked.errors)
        else:
            await self._move(live, "in_progress")

    async def _run(self, live: _Live) -> None:
        run = BatchRun(
            live.batch,
            await self._thread.call(self._store.paths, live.batch.id),
            thread=self._thread,
            slots=self._slots,
            run_body=self._run_body,
            clock=self._clock,
            line_bytes=self._limits.line_bytes,
            tell=live.tell,
        )
        await run.answer_all()

    async def _finish(self, live: _Live) -> None:
        """Makes the files of a batch whose work has ended."""
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

    async def _fail(self, live: _Live, errors: tuple[LineError, ...]) -> None:
        live.batch = replace(live.batch, errors=errors)
        await self._move(live, "failed")

    async def _move(self, live: _Live, status: Status) -> None:
        """Brings a batch into another state, and ends its work where it shall not go on.

        Where it went another way meanwhile, nothing is done.
        """
        async with live.moving:
            if status not in TRANSITIONS[live.batch.status]:
                return
            now = self._wall()
            await self._thread.call(self._store.save, live.batch.moved(status, now))
            live.batch = live.batch.moved(status, now)
        if status == "cancelling" and live.limit is not None and not live.limit.expired():
            live.limit.reschedule(asyncio.get_running_loop().time())

    async def _sweep(self) -> None:
        """Removes what has expired, now and then."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._files.sweep()
                await self._thread.call(self._store.sweep)
            except ResourceError as error:
                logging.getLogger(__name__).warning("sweep failed: %s", error)


def _is_of_disk(error: Exception) -> bool:
    """Whether nothing but a disk is to blame."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_of_disk, error.exceptions))
    return isinstance(error, ResourceError | OSError)
