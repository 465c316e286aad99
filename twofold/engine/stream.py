"""The deltas of one request that its reader has not taken yet.

A reader that does not keep up pauses its own request and no other: above HIGH_WATER the request is paused in the
engine, below LOW_WATER it is resumed. A reader may have a limit, above which the stream is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from twofold.core.errors import SlowClientError
from twofold.engine.outputs import OutputDelta, RequestOutput

HIGH_WATER: Final = 32 << 10
LOW_WATER: Final = 8 << 10
"""Both limit the unread bytes, as ``weight`` counts them."""
DELTA_BYTES: Final = 64
"""Bytes that the record of a delta counts, and that of a log-probability."""


class OutputStream:
    """The stream from an engine to a reader. It belongs to the reader's event loop.

    ``pause`` is called with True to pause the request, with False to resume it. More than ``max_bytes`` unread bytes
    cut the stream; None: no limit. ``began`` is whether there was a delta, ``over`` whether the request has ended in
    the engine, and ``whole`` its output then.
    """

    def __init__(self, pause: Callable[[bool], None], max_bytes: int | None = None) -> None:
        self.began = False
        self.over = False
        self.whole: RequestOutput | None = None
        self._pause = pause
        self._max_bytes = max_bytes
        self._deltas: deque[tuple[OutputDelta, int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._bytes = 0
        self._paused = False

    def push(self, delta: OutputDelta) -> None:
        """Adds a delta for the reader."""
        self.began = True
        if delta.request is not None:
            self.over, self.whole = True, delta.request
        if self._error is not None:
            return
        size = weight(delta)
        self._deltas.append((delta, size))
        self._bytes += size
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            self._deltas.clear()
            self._error = SlowClientError(
                f"The stream was cut: {self._max_bytes >> 20} MiB were unread.", hint="Read the stream as it arrives."
            )
        elif self._bytes > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause(True)
        self._wake()

    def break_off(self, error: Exception) -> None:
        """The request has ended in the engine without an output: the reader gets its deltas, then ``error``."""
        self.over = True
        self._error = self._error or error
        self._wake()

    async def take(self) -> OutputDelta:
        """The next delta. Raises the error that ended the request early."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        delta, size = self._deltas.popleft()
        if delta.error is not None:
            raise delta.error
        self._bytes -= size
        if self._paused and self._bytes < LOW_WATER:
            self._paused = False
            self._pause(False)
        return delta

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def weight(delta: OutputDelta) -> int:
    """Estimated bytes of an unread delta, without its prompt, of which there is one at most, as in a whole output."""
    positions = sum(map(len, delta.logprobs)) if delta.logprobs else 0
    return DELTA_BYTES * (1 + positions) + len(delta.text)
