"""Answers the lines of one batch: many at once, each once, and what was finished before not again."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twofold.api.batch.journal import Journal
from twofold.api.batch.lines import InputLine, custom_id_of, decode_line, read_lines, target_of
from twofold.api.openai.errors import error_reply
from twofold.core.clock import Clock
from twofold.core.errors import BusyError, QuotaError, TwofoldError, WorkerError
from twofold.server.batches.check import next_step
from twofold.server.batches.record import NOTHING, BatchRecord, BatchTally
from twofold.server.storage.batches import BatchPaths
from twofold.server.storage.thread import SingleThread

MIN_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 60.0
MAX_CRASHES: Final = 3
"""So often a line may be in a model's process when that ends, before the line is given up."""


@dataclass(frozen=True, slots=True)
class LineCall:
    """A line that shall be answered, in the tier of batches. ``key`` is the id of the API key that made the batch."""

    endpoint: str
    body: dict[str, Any]
    tenant: str
    key: str
    custom_id: str
    request_id: str


RunBody = Callable[[LineCall], Awaitable[tuple[int, Mapping[str, Any]]]]
"""Answers a line: the HTTP status, and the body in the words of the endpoint's dialect, errors too.

It raises BusyError or QuotaError where the line shall be tried again later, WorkerError where the model's process
ended; other errors are the line's answer.
"""


class BatchRun:
    """Brings the lines of ``batch`` that have no answer yet to ``run_body``, and its answers into the journal.

    slots        a line holds one from its beginning to its answer, also while it waits for a busy model, but not while
                 it waits for its key's quota
    line_bytes   most bytes of a line
    tell         hears the tally after each line
    """

    def __init__(
        self,
        batch: BatchRecord,
        paths: BatchPaths,
        *,
        thread: SingleThread,
        slots: asyncio.Semaphore,
        run_body: RunBody,
        clock: Clock,
        line_bytes: int,
        tell: Callable[[BatchTally], None],
    ) -> None:
        self._batch, self._paths = batch, paths
        self._thread, self._slots, self._run_body = thread, slots, run_body
        self._clock, self._line_bytes, self._tell = clock, line_bytes, tell
        self._turn = asyncio.Lock()
        self._limited = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tally = NOTHING
        self._journal: Journal | None = None
        self._lines: Generator[InputLine, None, None] | None = None

    async def answer_all(self) -> None:
        """Returns when every line has its answer. Cancelling it leaves the rest for another run.

        Raises ResourceError, alone or in an ExceptionGroup, where the journal cannot be written.
        """
        try:
            await self._thread.call(self._open)
            self._tell(self._tally)
            async with asyncio.TaskGroup() as group:
                while (step := await self._thread.call(self._next)) is not None:
                    for key, call in step:
                        await self._flowing.wait()
                        slot = await _Slot.of(self._slots)
                        task = group.create_task(self._answer(key, call, slot))
                        task.add_done_callback(slot.free)  # also where it is cancelled before it begins
        finally:
            await self._thread.surely(self._close)

    def _open(self) -> None:
        self._journal = Journal(self._paths.journal, self._clock, hear=self._count)
        self._lines = read_lines(self._paths.source, self._line_bytes)

    def _close(self) -> None:
        """Also where the run was cancelled while it opened them."""
        if self._lines is not None:
            self._lines.close()
        if self._journal is not None:
            self._journal.close()

    def _count(self, line: Mapping[str, Any]) -> None:
        self._tally = self._tally.plus(line)

    def _next(self) -> list[tuple[str, LineCall]] | None:
        """What the next few lines ask for that have no answer, by their keys; None at the end."""
        assert self._lines is not None
        assert self._journal is not None
        step, finished = next_step(self._lines), self._journal.found.finished
        return [(line.key, self._read(line)) for line in step if line.key not in finished] if step else None

    def _read(self, line: InputLine) -> LineCall:
        """What a line asks for; that it can be read was checked before."""
        fields = decode_line(line, self._line_bytes)
        custom_id = custom_id_of(fields)
        endpoint, body = target_of(fields, (self._batch.endpoint,))
        assert isinstance(body, dict)
        return LineCall(endpoint, body, self._batch.tenant, self._batch.key, custom_id, f"req_{line.key}")

    async def _answer(self, key: str, call: LineCall, slot: _Slot) -> None:
        status, body = await self._patiently(call, slot)
        response = {"status_code": status, "request_id": call.request_id, "body": body}
        error = None if status == 200 else _told(body)
        record = {"custom_id": call.custom_id, "response": response, "error": error}
        await self._thread.call(self._write, key, record)
        self._tell(self._tally)

    def _write(self, key: str, record: Mapping[str, Any]) -> None:
        assert self._journal is not None
        self._journal.write(key, record)
        self._count(record)

    async def _patiently(self, call: LineCall, slot: _Slot) -> tuple[int, Mapping[str, Any]]:
        """Tries until the line has an answer."""
        wait, crashes = MIN_WAIT_S, 0
        while True:
            try:
                return await self._run_body(call)
            except QuotaError as error:
                await self._limit(error.retry_after_s, slot)
            except BusyError as error:
                await asyncio.sleep(min(max(error.retry_after_s, wait), MAX_WAIT_S))
                wait = min(wait * 2, MAX_WAIT_S)
            except WorkerError as error:
                crashes += 1
                if crashes == MAX_CRASHES:
                    return error.status, error_reply(error)
            except TwofoldError as error:
                return error.status, error_reply(error)
            except Exception as error:  # whatever one line brings about, the others go on
                logging.getLogger(__name__).error("line %s failed: %s", call.request_id, place_of(error))
                failure = TwofoldError("The server failed to process this line.")
                return failure.status, error_reply(failure)

    async def _limit(self, wait_s: float, slot: _Slot) -> None:
        """Waits for a key's quota without a slot, which others can use. Lines wait one after the other, each for its
        own share, so they come back no faster than the quota fills; and no further line begins meanwhile."""
        slot.free()
        self._limited += 1
        self._flowing.clear()
        try:
            async with self._turn:
                await asyncio.sleep(min(wait_s, MAX_WAIT_S))
        finally:
            self._limited -= 1
            if not self._limited:
                self._flowing.set()
        await slot.take()


class _Slot:
    """A line's place among those that run."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._held = False

    @classmethod
    async def of(cls, slots: asyncio.Semaphore) -> _Slot:
        """A slot that is held."""
        slot = cls(slots)
        await slot.take()
        return slot

    async def take(self) -> None:
        await self._slots.acquire()
        self._held = True

    def free(self, _task: object = None) -> None:
        """Gives it back; more than once does nothing."""
        if self._held:
            self._held = False
            self._slots.release()


def place_of(error: BaseException) -> str:
    """Where an error that nobody expected came from; its message is left out, for it may hold what a caller wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


def _told(body: Mapping[str, Any]) -> dict[str, str]:
    """The code and message of an error's body, in either dialect."""
    error = body.get("error") or {}
    return {
        "code": str(error.get("code") or error.get("type") or "server_error"),
        "message": str(error.get("message") or ""),
    }
