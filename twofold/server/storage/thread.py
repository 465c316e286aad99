"""A thread for what blocks: disks and databases, away from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SingleThread:
    """Does calls one after the other, in the order in which they came; so what is only used by them needs no lock.

    A call that was begun is done to its end; one that still waits is dropped where the coroutine that waits for it is
    cancelled.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Does ``do(*args, **more)``; what it returns or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more))

    async def surely(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """As ``call``, but it is done however soon the coroutine that waits for it is cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more)))

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Does long work step by step, so that other calls come in between; what it returns or raises."""
        try:
            while True:
                done, result = await self.call(_step, work)
                if done:
                    assert result is not None
                    return result[0]
        finally:
            await self.surely(work.close)

    def close(self) -> None:
        """Waits for what was begun. No call may follow."""
        self._pool.shutdown(wait=True)


def _step(work: Generator[None, None, T]) -> tuple[bool, tuple[T] | None]:
    """Whether the work ended, and with what; StopIteration itself cannot pass through a future."""
    try:
        next(work)
    except StopIteration as stop:
        return True, (stop.value,)
    return False, None
