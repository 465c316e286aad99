"""What is left of a request whose client has disconnected."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from twofold.server.exchange import CLIENT_GONE
from twofold.server.http.replies import Replies


class _Exchange:
    status = 200
    cut = None
    task: asyncio.Task[None] | None = None


class _Endless:
    """A runner whose requests never end."""

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


def test_a_client_that_left_leaves_nothing_to_the_garbage_collector() -> None:
    async def gone() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def answer() -> weakref.ref[_Exchange]:
        exchange = _Exchange()
        unused: Any = None
        runner: Any = _Endless()
        replies: Any = Replies(runner, unused)
        await replies.answer(exchange, unused, gone, unused)
        assert exchange.status == CLIENT_GONE
        return weakref.ref(exchange)

    gc.disable()
    try:
        assert asyncio.run(answer())() is None
    finally:
        gc.enable()
