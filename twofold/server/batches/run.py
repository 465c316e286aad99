"""Runs the lines of batches: many at once, in the same way as HTTP requests, in the batch tier."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from twofold.api.base import DialectRequest
from twofold.api.batch.journal import BatchTally
from twofold.api.batch.lines import LineCall, read_body
from twofold.api.batch.run import BatchRun
from twofold.api.fields import ignoring
from twofold.api.names import declared_name
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.errors import OpenAIDialect, error_reply
from twofold.core.errors import BusyError, QuotaError, TwofoldError, WorkerError
from twofold.observe.served import ServedRequest
from twofold.server.context import RequestContext
from twofold.server.edge.keys import Caller
from twofold.server.edge.limits import KIB
from twofold.server.edge.quotas import Quotas
from twofold.server.pool import WorkPool
from twofold.server.runner import GenerationRun, RequestRunner
from twofold.server.storage.database import SingleThread

MIN_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 60.0
MAX_CRASHES: Final = 3
"""Crashes of the model's process after which a line fails."""

RunBody = Callable[[LineCall], Awaitable[tuple[int, object]]]
"""Runs a line. Returns the HTTP status and the body, also of an error, in the endpoint's API protocol.

Raises BusyError or QuotaError if the line must be retried later, WorkerError if the model's process ended; any other
error is the line's result.
"""
LINE_BYTES: Final = 128 * KIB
"""Bytes that a line counts as in the pool, among the bodies of HTTP requests: it may take long."""
log = logging.getLogger("twofold.serve")


class BatchDispatcher:
    """Hands the lines of a batch that have no result to ``run_body`` and writes the results.

    open_run   opens the batch's run, on ``thread``
    width      lines that run at once
    slots      shared by all batches: a line holds one while it runs, but not while its model is busy, or while it
               waits for the quota of its key
    on_result  is called with the tally after each line
    """

    def __init__(
        self,
        open_run: Callable[[], BatchRun],
        run_body: RunBody,
        thread: SingleThread,
        slots: asyncio.Semaphore,
        width: int,
        on_result: Callable[[BatchTally], None],
    ) -> None:
        self._open_run, self._run_body, self._thread = open_run, run_body, thread
        self._slots, self._width, self._on_result = slots, width, on_result
        self._run: BatchRun | None = None
        self._calls: deque[LineCall] = deque()
        self._ended = False
        self._turn = asyncio.Lock()
        self._limited = 0
        self._read, self._flowing = asyncio.Event(), asyncio.Event()
        self._read.set()
        self._flowing.set()
        self._crashes: Counter[str] = Counter()

    async def run_all(self) -> None:
        """Returns when every line has a result. If it is cancelled, another run can continue with the other lines.

        Raises ResourceError, alone or in an ExceptionGroup, if the journal cannot be written.
        """
        try:
            run = await self._thread.call(self._open)
            self._on_result(run.journal.tally)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._width):
                    group.create_task(self._work(run))
        finally:
            await self._thread.call_even_if_cancelled(self._close)

    def _open(self) -> BatchRun:
        self._run = self._open_run()
        return self._run

    def _close(self) -> None:
        """Closes the run, also if ``run_all`` was cancelled while the run was opened."""
        if self._run is not None:
            self._run.close()

    async def _work(self, run: BatchRun) -> None:
        """Runs one line after the other."""
        call, wait = None, MIN_WAIT_S
        while True:
            if call is None:
                await self._flowing.wait()
            try:
                async with self._slots:
                    call = call or await self._next(run)
                    if call is None:
                        return
                    status, body = await self._result(call)
            except QuotaError as error:
                await self._limit(error.retry_after_s)
                continue
            except BusyError as error:
                await asyncio.sleep(min(max(error.retry_after_s, wait), MAX_WAIT_S))
                wait = min(wait * 2, MAX_WAIT_S)
                continue
            await self._thread.call(run.write, call, status, body)
            self._on_result(run.journal.tally)
            call, wait = None, MIN_WAIT_S

    async def _next(self, run: BatchRun) -> LineCall | None:
        """The next line without a result; None at the end. One worker reads, the others wait for it."""
        while not self._calls and not self._ended:
            if not self._read.is_set():
                await self._read.wait()
                continue
            self._read.clear()
            try:
                calls = await self._thread.call(run.next_calls)
            finally:
                self._read.set()
            self._ended = calls is None
            self._calls.extend(calls or ())
        return self._calls.popleft() if self._calls else None

    async def _result(self, call: LineCall) -> tuple[int, object]:
        """Tries until the line has a result. Raises QuotaError and BusyError."""
        while True:
            try:
                return await self._run_body(call)
            except (QuotaError, BusyError):
                raise
            except TwofoldError as error:
                self._crashes[call.line_key] += isinstance(error, WorkerError)
                if not isinstance(error, WorkerError) or self._crashes[call.line_key] == MAX_CRASHES:
                    return error.status, error_reply(error)
            except Exception as error:  # a fault of the server in one line must not end the others
                logging.getLogger(__name__).error("batch line %s: internal error: %s", call.request_id, place_of(error))
                failure = TwofoldError("The server failed to process this line.")
                return failure.status, error_reply(failure)

    async def _limit(self, wait_s: float) -> None:
        """Waits for a key's quota. Lines wait one after the other, so they return no faster than the quota fills;
        meanwhile no further line of the batch starts."""
        self._limited += 1
        self._flowing.clear()
        try:
            async with self._turn:
                await asyncio.sleep(min(wait_s, MAX_WAIT_S))
        finally:
            self._limited -= 1
            if not self._limited:
                self._flowing.set()


def place_of(error: BaseException) -> str:
    """The type of an unexpected error and the line that raised it; not its message, which may quote a caller."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


class LineRunner:
    """``RunBody`` on the models of ``runner``.

    ``caller_of`` returns the caller of a key, by tenant and key id; ``tolerant`` ignores unknown fields.
    """

    def __init__(
        self,
        runner: RequestRunner,
        caller_of: Callable[[str, str], Caller],
        quotas: Quotas,
        pool: WorkPool,
        *,
        tolerant: bool = False,
    ) -> None:
        self._runner, self._caller_of, self._quotas = runner, caller_of, quotas
        self._pool, self._tolerant = pool, tolerant
        self._dialect = OpenAIDialect()

    async def __call__(self, line: LineCall) -> tuple[int, object]:
        caller = self._caller_of(line.tenant, line.key)
        record = ServedRequest(
            line.request_id,
            line.endpoint,
            self._dialect.name,
            caller.tenant,
            caller.id,
            time.time(),
            tier="batch",
        )
        context = RequestContext(record, self._dialect, caller, f"batch of {caller.id}", LINE_BYTES)
        context.quota = self._quotas.enter(caller.id, caller.quota, context.arrived)
        with self._runner.track(context):
            try:
                self._runner.check_open()
                request = await self._pool.run(context.source, LINE_BYTES, partial(self._read, line))
                if isinstance(request, ChatRequest):
                    await self._runner.compress(context, request)
                async with self._runner.open(GenerationRun(context, request)) as run:
                    return 200, await self._runner.reply(run)
            except (BusyError, QuotaError, WorkerError) as error:
                context.fail(error)
                raise
            except TwofoldError as error:
                context.fail(error)
                return record.status, self._dialect.error(error, line.request_id)

    def _read(self, line: LineCall) -> DialectRequest:
        if not self._tolerant:
            return read_body(line)
        with ignoring(unknown=True) as ignored:
            request = read_body(line)
        if ignored.logged:
            log.warning("batch line %s: omitted: %s", line.request_id, ", ".join(map(declared_name, ignored.logged)))
        return request
