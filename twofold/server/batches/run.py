"""Runs the lines of one batch on the server: many at once, through the path of HTTP requests."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from twofold.api.batch.journal import BatchTally
from twofold.api.batch.lines import LineCall
from twofold.api.batch.run import BatchRun
from twofold.api.openai.errors import error_reply
from twofold.core.errors import BusyError, QuotaError, TwofoldError, WorkerError
from twofold.server.storage.thread import SingleThread

MIN_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 60.0
MAX_CRASHES: Final = 3
"""Crashes of the model's process after which a line fails."""

RunBody = Callable[[LineCall], Awaitable[tuple[int, object]]]
"""Runs a line: the HTTP status, and the body in the endpoint's API protocol, also of an error.

It raises BusyError or QuotaError where the line must be retried later, WorkerError where the model's process ended;
any other error is the line's result.
"""


class BatchDispatcher:
    """Hands the lines of a batch that have no result to ``run_body`` and writes the results.

    open_run   opens the batch's run, on ``thread``
    width      lines that run at once
    slots      of all batches: a line holds one while it runs, also while its model is busy, but not while it waits for
               the quota of its key
    tell       is called with the tally after each line
    """

    def __init__(
        self,
        open_run: Callable[[], BatchRun],
        run_body: RunBody,
        thread: SingleThread,
        slots: asyncio.Semaphore,
        width: int,
        tell: Callable[[BatchTally], None],
    ) -> None:
        self._open_run, self._run_body, self._thread = open_run, run_body, thread
        self._slots, self._width, self._tell = slots, width, tell
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
        """Returns when every line has a result. When it is cancelled, the rest is left to another run.

        Raises ResourceError, alone or in an ExceptionGroup, where the journal cannot be written.
        """
        try:
            run = await self._thread.call(self._open)
            self._tell(run.journal.tally)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._width):
                    group.create_task(self._work(run))
        finally:
            await self._thread.surely(self._close)

    def _open(self) -> BatchRun:
        self._run = self._open_run()
        return self._run

    def _close(self) -> None:
        """Also where ``run_all`` was cancelled while the run was opened."""
        if self._run is not None:
            self._run.close()

    async def _work(self, run: BatchRun) -> None:
        """Runs one line after the other."""
        call: LineCall | None = None
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
            await self._thread.call(run.write, call, status, body)
            self._tell(run.journal.tally)
            call = None

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
        """Tries until the line has a result. Raises QuotaError."""
        wait = MIN_WAIT_S
        while True:
            try:
                return await self._run_body(call)
            except QuotaError:
                raise
            except BusyError as error:
                await asyncio.sleep(min(max(error.retry_after_s, wait), MAX_WAIT_S))
                wait = min(wait * 2, MAX_WAIT_S)
            except TwofoldError as error:
                self._crashes[call.line_key] += isinstance(error, WorkerError)
                if not isinstance(error, WorkerError) or self._crashes[call.line_key] == MAX_CRASHES:
                    return error.status, error_reply(error)
            except Exception as error:  # an error of ours in one line must not end the others
                logging.getLogger(__name__).error("batch line %s: internal error: %s", call.request_id, place_of(error))
                failure = TwofoldError("The server failed to process this line.")
                return failure.status, error_reply(failure)

    async def _limit(self, wait_s: float) -> None:
        """Waits for a key's quota. Lines wait one after the other, each for its own share, so they return no faster
        than the quota fills; meanwhile no further line of the batch starts."""
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
    """The type of an unexpected error and where it was raised; not its message, which may quote a caller."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where
