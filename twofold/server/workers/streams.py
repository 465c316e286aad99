"""What a request gave and its reader has not taken yet.

A reader that does not keep up holds its own request and nobody else's: above HIGH_WATER the request rests in the
engine, below LOW_WATER it goes on. One whose reader lets even more wait is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from twofold.core.errors import SlowClientError, TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.server.base import Passage
from twofold.server.workers.messages import Generate, RunPooling

HIGH_WATER: Final = 32 << 10
LOW_WATER: Final = 8 << 10
MOST_WAITING: Final = 1 << 20
"""Bytes that wait for a reader, as far as they are counted: text, and for each delta and log-probability its record."""
DELTA_BYTES: Final = 64


class WorkerStream:
    """The deltas of one request, from the worker that has it to its reader. It belongs to the event loop.

    ``command`` is what starts it, ``tries`` how many processes were given it. ``began`` says whether it has given
    anything, ``over`` whether the worker knows it no more.
    ``tell`` is called with True where it must rest, with False where it may go on.
    """

    def __init__(self, command: Generate | RunPooling, passage: Passage, tell: Callable[[bool], None]) -> None:
        self.command = command
        self.passage = passage
        self.tries = 0
        self.began = False
        self.over = False
        self._tell = tell
        self._deltas: deque[OutputDelta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._whole: RequestOutput | None = None
        self._left: asyncio.Future[RequestOutput | None] | None = None
        self._error: TwofoldError | None = None
        self._bytes = 0
        self._resting = False

    def push(self, delta: OutputDelta) -> None:
        """Adds what came."""
        self.began = True
        if delta.request is not None:
            self.over, self._whole = True, delta.request
        if self._error is not None or self._left is not None:
            return
        self._deltas.append(delta)
        self._bytes += weight(delta)
        if self._bytes > HIGH_WATER:
            self._overflow()
        self._wake()

    def break_off(self, error: TwofoldError) -> None:
        """The worker gives no more: the reader gets ``error`` after what is there."""
        self.over = True
        self._error = self._error or error
        self._wake()

    async def take(self) -> OutputDelta:
        """The next delta. Raises what ended the request early."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        delta = self._deltas.popleft()
        if delta.error is not None:
            raise delta.error
        self._bytes -= weight(delta)
        if self._resting and self._bytes < LOW_WATER:
            self._resting = False
            self._tell(False)
        return delta

    def leave(self) -> None:
        """Nobody takes any more; ``settle`` is to follow."""
        self._deltas.clear()
        self._left = self.passage.leave()

    def settle(self, remains: RequestOutput | None = None) -> None:
        """Tells whoever left what there was of the request: what the worker says, or else its last delta."""
        assert self._left is not None, "a stream is left, then settled"
        remains = remains or self._whole
        self._left.set_result(None if remains is None else self.with_prompt(remains))

    def with_prompt(self, output: RequestOutput) -> RequestOutput:
        """A result as the worker sends it, with the prompt, which it leaves out."""
        return replace(output, prompt_token_ids=tuple(self.command.token_ids))

    def _overflow(self) -> None:
        if self._bytes > MOST_WAITING:
            self._deltas.clear()
            self._error = SlowClientError(
                f"The stream was cut: {MOST_WAITING >> 20} MiB were unread.",
                hint="Read the stream as it arrives.",
            )
        elif not self._resting:
            self._resting = True
            self._tell(True)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def weight(delta: OutputDelta) -> int:
    """What a delta that waits counts."""
    positions = sum(map(len, delta.logprobs)) if delta.logprobs else 0
    return DELTA_BYTES * (1 + positions) + len(delta.text)
