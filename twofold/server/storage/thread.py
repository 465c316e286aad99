"""A thread for blocking calls: disks and databases, away from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SingleThread:
    """Makes calls in the order in which they arrive, so objects that only its calls use need no lock.

    A call that has started runs to its end; a waiting one is dropped when its coroutine is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    @classmethod
    async def open(cls, name: str, make: Callable[P, T], *args: P.args, **more: P.kwargs) -> tuple[Self, T]:
        """A thread, and what ``make`` returns there. Raises what ``make`` raises."""
        thread = cls(name)
        try:
            return thread, await thread.call(make, *args, **more)
        except BaseException:
            thread.close()
            raise

    async def call(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Returns or raises what ``do(*args, **more)`` does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more))

    async def surely(self, do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """As ``call``, but the call is made even if the coroutine is cancelled before it starts."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, partial(do, *args, **more)))

    async def each(self, items: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """The items, each made by a call."""
        try:
            while found := await self.call(list, islice(items, 1)):
                yield found[0]
        finally:
            await self.surely(items.close)

    async def drive(self, work: Generator[T | None, None, None]) -> T:
        """The last item of long work, which yields None between its steps; other calls are made in between."""
        *_, result = [item async for item in self.each(work)]
        assert result is not None
        return result

    async def end(self, do: Callable[[], None]) -> None:
        """Makes a last call and ends the thread."""
        await self.call(do)
        self.close()

    def close(self) -> None:
        """Waits for calls that have started. No call may follow."""
        self._pool.shutdown(wait=True)
