"""Long work of the HTTP process: decoding bodies, checking requests, rendering and tokenising prompts.

It runs on a few threads, so that the event loop serves others meanwhile. Laws:

1. Work on more than ``small`` bytes has a separate lane: a request of 5 KB never waits for one of 2 MB.
2. In a lane the caller with the least work so far goes first (start-time fair queueing, Goyal et al. 1996; cost is in
   bytes): many requests of one caller delay those of another by one request each.
3. A lane holds a bounded number of bytes, running work included; work beyond is refused with BusyError. A
   ``ByteBudget`` counts them and leaves room for other callers; another one counts bodies that are being read.
4. A model whose prompts are slow to prepare, because of its chat template, has two separate lanes, for small and for
   large prompts, with one thread each: no other model waits for it. It keeps them until it was quick QUICK_RUNS times.
5. A caller whose renderings exceeded the limits of a model's template MAX_EXCEEDED times in a row gets the same error
   at once for REST_S.

All of this happens on the event loop, except the work itself. A native call that holds the interpreter would still stop
all requests: work keeps such calls below some 30 ms (tokenizers releases the interpreter; orjson does not, but is
quick).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar, cast

from twofold.core.errors import BusyError, TemplateLimitError
from twofold.host.machine import return_freed_memory
from twofold.server.edge.limits import KIB, MIB

T = TypeVar("T")

MIN_COST: Final = 4 * KIB
"""Bytes that smaller work counts as."""
RETRY_S: Final = 2.0
TRIMMED: Final = MIB
"""Bytes of work after which freed memory is returned to the system."""
TRIM_S: Final = 1.0
"""Delay before it is returned. Returning it locks the allocator's arenas, so a thread that allocates waits: 20 ms after
a text of 2 MB that is one word."""
SLOW_S: Final = 0.25
"""A preparation that takes longer is slow; ordinary prompts take a few milliseconds."""
QUICK_RUNS: Final = 1000
MAX_EXCEEDED: Final = 3
REST_S: Final = 10.0
MAX_CALLERS: Final = 1024


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Threads of the lanes of small and large work, and maximum bytes in each lane, running work included.

    small          maximum bytes of small work
    apart_waiting  maximum bytes in each lane of a slow model
    """

    small: int = 64 * KIB
    small_threads: int = 2
    small_waiting: int = 8 * MIB
    large_threads: int = 1
    large_waiting: int = 64 * MIB
    apart_waiting: int = 16 * MIB


class ByteBudget:
    """``max_bytes`` that callers share. A caller may not hold more than were free before its last ``take``.

    ``emptied`` is called when all bytes were given back; ``full`` is the message of the error when too few are left.
    """

    def __init__(
        self,
        max_bytes: int,
        emptied: Callable[[], None] = lambda: None,
        full: str = "The server's memory for request bodies is full.",
    ) -> None:
        self._emptied = emptied
        self._full = full
        self._max_bytes = max_bytes
        self._held: dict[str, int] = {}
        self.total = 0

    def take(self, caller: str, size: int) -> None:
        """Takes bytes. Raises BusyError if too few are left."""
        held, free = self._held.get(caller, 0) + size, self._max_bytes - self.total
        if (held > size and held > free) or size > free:
            raise BusyError(
                self._full,
                retry_after_s=RETRY_S,
                hint="Retry after the delay in Retry-After, or send fewer or smaller requests at once.",
            )
        self._held[caller] = held
        self.total += size

    def give(self, caller: str, size: int) -> None:
        """Gives bytes back."""
        self.total -= size
        self._held[caller] -= size
        if not self._held[caller]:
            del self._held[caller]
        if not self.total:
            self._emptied()


@dataclass(slots=True)
class PreparationGuard:
    """The recent preparations of one model's prompts.

    apart     quick preparations until the model shares lanes with others again; 0 if it does
    exceeded  by caller: how often in a row it exceeded the template's limits, the last error, and when that was
              (monotonic clock)
    """

    apart: int = 1
    exceeded: dict[str, tuple[int, TemplateLimitError, float]] = field(default_factory=dict)

    def check(self, caller: str) -> None:
        """Raises TemplateLimitError for a caller that exceeded the limits MAX_EXCEEDED times, less than REST_S ago."""
        times, error, at = self.exceeded.get(caller, (0, None, 0.0))
        if error is not None and times >= MAX_EXCEEDED and time.monotonic() - at < REST_S:
            raise TemplateLimitError(str(error), hint=error.hint)

    def note(self, caller: str, error: Exception | None, seconds: float) -> None:
        """Notes how a preparation ended, and how long it took."""
        self.apart = QUICK_RUNS if seconds > SLOW_S else max(0, self.apart - 1)
        times = self.exceeded.pop(caller, (0,))[0]
        if isinstance(error, TemplateLimitError):
            if len(self.exceeded) >= MAX_CALLERS:
                del self.exceeded[next(iter(self.exceeded))]
            short = TemplateLimitError(str(error), hint=error.hint)  # without the frames, which hold the body
            self.exceeded[caller] = times + 1, short, time.monotonic()


@dataclass(order=True, slots=True)
class QueuedWork:
    """Ordered by ``tag``, the virtual time at which it may begin, then by arrival."""

    tag: float
    number: int
    run: Callable[[], Any] = field(compare=False)
    done: asyncio.Future[Any] = field(compare=False)


class Lane:
    """A queue of work of similar size, and the threads that run it; ``budget`` holds its sizes."""

    def __init__(self, name: str, threads: int, budget: ByteBudget) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"pool-{name}")
        self._idle = threads
        self._budget = budget
        self._heap: list[QueuedWork] = []
        self._numbers = count()
        self._now = 0.0
        self._next: dict[str, float] = {}

    async def run(self, caller: str, size: int, work: Callable[[], T]) -> T:
        self._budget.take(caller, size)
        try:
            tag = max(self._now, self._next.get(caller, 0.0))
            self._next[caller] = tag + size
            done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            heappush(self._heap, QueuedWork(tag, next(self._numbers), work, done))
            self._start()
            return await done
        finally:
            self._budget.give(caller, size)

    def _start(self) -> None:
        """Starts queued work on idle threads; drops work whose caller has left."""
        while self._idle and self._heap:
            work = heappop(self._heap)
            if work.done.cancelled():
                continue
            self._now = max(self._now, work.tag)
            self._idle -= 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, work.run)
            running.add_done_callback(partial(self._end, work))
        if not self._heap:
            self._next = {caller: tag for caller, tag in self._next.items() if tag > self._now}

    def _end(self, work: QueuedWork, ended: asyncio.Future[Any]) -> None:
        self._idle += 1
        if ended.cancelled():
            work.done.cancel()
        elif (error := ended.exception()) is not None:
            if not work.done.cancelled():
                work.done.set_exception(error)
        elif not work.done.cancelled():
            work.done.set_result(ended.result())
        self._start()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._budget.total

    def trim(self) -> None:
        """Returns freed memory, which the allocator would keep, to the system."""
        with suppress(RuntimeError):  # the lane was closed
            self._threads.submit(return_freed_memory)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class WorkPool:
    """Runs the long work of all requests of a server. Made and used on the event loop."""

    def __init__(self, limits: PoolLimits | None = None) -> None:
        limits = limits or PoolLimits()
        self._limits = limits
        self._small = Lane("small", limits.small_threads, ByteBudget(limits.small_waiting))
        self._large = Lane("large", limits.large_threads, ByteBudget(limits.large_waiting))
        self._guards: dict[str, PreparationGuard] = {}
        self._apart: dict[tuple[str, bool], Lane] = {}
        self._trimming: asyncio.TimerHandle | None = None

    async def run(self, caller: str, size: int, work: Callable[[], T]) -> T:
        """Returns the result of ``work()``, run on a thread. It works on ``size`` bytes and counts for ``caller``.

        Raises the errors of ``work``, and BusyError if too much work is waiting.
        """
        size, work = max(size, MIN_COST), partial(copy_context().run, work)
        if size <= self._limits.small:
            return await self._small.run(caller, size, work)
        try:
            return await self._large.run(caller, min(size, self._limits.large_waiting), work)
        finally:
            if size >= TRIMMED:
                self.trim()

    async def prepare(self, model: str, caller: str, size: int, work: Callable[[], T]) -> T:
        """Like ``run``, for work that may render the chat template of the served model named ``model``.

        Raises TemplateLimitError at once for a caller that exceeded the template's limits repeatedly.
        """
        guard = self._guards.setdefault(model, PreparationGuard())
        guard.check(caller)
        timed = partial(_timed, work)
        if guard.apart:
            lane = model, size <= self._limits.small
            if lane not in self._apart:
                self._apart[lane] = Lane(f"apart-{len(self._apart)}", 1, ByteBudget(self._limits.apart_waiting))
            size = min(max(size, MIN_COST), self._limits.apart_waiting)
            result, error, seconds = await self._apart[lane].run(caller, size, partial(copy_context().run, timed))
        else:
            result, error, seconds = await self.run(caller, size, timed)
        guard.note(caller, error, seconds)
        if error is not None:
            raise error
        return cast(T, result)

    def trim(self) -> None:
        """Returns freed memory to the system after TRIM_S, then or later, when no large work runs."""
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        if self._large.idle:
            self._large.trim()
        else:
            self.trim()

    def close(self) -> None:
        """Ends the threads when their running work has ended; waiting work is dropped."""
        if self._trimming is not None:
            self._trimming.cancel()
        for lane in (self._small, self._large, *self._apart.values()):
            lane.close()


def _timed(work: Callable[[], T]) -> tuple[T | None, Exception | None, float]:
    """The result of ``work``, or its error, and the seconds it took."""
    began = time.monotonic()
    try:
        return work(), None, time.monotonic() - began
    except Exception as error:
        return None, error, time.monotonic() - began
