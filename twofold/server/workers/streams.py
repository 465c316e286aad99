"""A request that was sent to a worker process, and its unread deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.stream import OutputStream
from twofold.server.base import DispatchHandle

MAX_WAITING: Final = 1 << 20
"""Max unread bytes; a stream with more is cut."""


class WorkerStream(OutputStream):
    """The stream of ``request``, which ``tries`` processes have received."""

    def __init__(self, request: EngineRequest, passage: DispatchHandle, tell: Callable[[bool], None]) -> None:
        super().__init__(tell, MAX_WAITING)
        self.request = request
        self.passage = passage
        self.tries = 0
        self._left: asyncio.Future[RequestOutput | None] | None = None

    def push(self, delta: OutputDelta) -> None:
        """Adds a delta; after ``leave`` keeps only the whole output."""
        if self._left is None:
            super().push(delta)
        elif delta.request is not None:
            self.over, self.whole = True, delta.request

    def leave(self) -> None:
        """The reader has left; ``settle`` must follow."""
        self._deltas.clear()
        self._left = self.passage.leave()

    def settle(self, remains: RequestOutput | None = None) -> None:
        """Gives the passage the request's output so far: that of the worker, or else that of the last delta."""
        assert self._left is not None, "a stream is left, then settled"
        remains = remains or self.whole
        self._left.set_result(None if remains is None else self.with_prompt(remains))

    def with_prompt(self, output: RequestOutput) -> RequestOutput:
        """A worker's output with the prompt, which workers do not send back."""
        return replace(output, prompt_token_ids=self.request.token_ids)
