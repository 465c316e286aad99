"""A thread that owns an engine's loop. Others hand it work and get what comes out; none of them touches the engine.

    any thread      submit, abort, call  →  inbox
    engine thread   inbox → engine.step() → outbox of each request

An outbox is called on the engine's thread, once a step with all that the step gave its request, so it must only hand
things on. When a step fails, every request under way gets the error and is gone; the loop goes on with what comes next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from twofold.core.errors import ResourceError, TwofoldError
from twofold.engine.engine import Engine
from twofold.engine.outputs import OutputDelta, RequestOutput

T = TypeVar("T")


class Outbox(Protocol):
    """Where the results of one request go."""

    def give(self, deltas: list[OutputDelta]) -> None:
        """What a step added; the last delta of a request carries the whole."""
        ...

    def fail(self, error: Exception) -> None:
        """The request ended without an answer."""
        ...


Flush = Callable[[], None]
IDLE_S: Final = 0.05
"""How long to wait where every request waits for its reader: a deadline may pass meanwhile."""
DEFERRED_S: Final = 0.002
"""How long where one waits to be told what it may draw."""


class EngineThread:
    """Runs an engine until it is closed. ``flush`` is called after each round of outboxes, once for all of them."""

    def __init__(self, engine: Engine, flush: Flush) -> None:
        self._engine = engine
        engine.deliver_to(self._hand_out)
        self._flush = flush
        self._inbox: deque[Callable[[], object]] = deque()
        self._outboxes: dict[str, Outbox] = {}
        self._wake = threading.Condition()
        self._open = True
        self._accepting = True
        self._thread = threading.Thread(target=self._live, name="twofold-engine", daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._outboxes)

    def submit(self, add: Callable[[Engine], str], outbox: Outbox) -> None:
        """Queues a request: ``add`` puts it into the engine, on the engine's thread, and gives its id."""
        self._post(lambda: self._take(add, outbox))

    def abort(self, request_id: str) -> Future[RequestOutput | None]:
        """Ends a request within a step; what there was of it, None if it is not there any more."""
        return self.call(lambda engine: self._abort(engine, request_id))

    def abandon(self, request_ids: list[str]) -> None:
        """Aborts the requests that the list holds when the engine's thread comes to it; nobody waits for that."""
        with suppress(ResourceError):
            self._post(lambda: [self._abort(self._engine, request_id) for request_id in request_ids])

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Runs ``function`` on the engine's thread, between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._engine))
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future

    def refuse(self) -> None:
        """Takes no new requests from now on; those under way go on."""
        self._accepting = False

    def close(self) -> None:
        """Aborts what is under way, and ends the thread. Closing twice is fine."""
        with self._wake:
            self._open = False
            self._wake.notify()
        self._thread.join()

    def _post(self, command: Callable[[], object]) -> None:
        with self._wake:
            if not self._open:
                raise ResourceError("The engine is closed.", hint="Create a new one.")
            self._inbox.append(command)
            self._wake.notify()

    def _live(self) -> None:
        while self._open:
            self._obey()
            if self._engine.has_work:
                self._turn()
            else:
                self._rest(None)
        self._fail_all(ResourceError("The engine was closed.", hint="Send it to another engine."))
        self._obey()

    def _rest(self, seconds: float | None) -> None:
        """Until something is in the inbox, or so long."""
        with self._wake:
            if self._open and not self._inbox:
                self._wake.wait(seconds)

    def _obey(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _turn(self) -> None:
        try:
            self._engine.step()
        except Exception as error:
            self._fail_all(error)
            return
        if self._engine.idle:
            self._rest(DEFERRED_S if self._engine.scheduler.defers else IDLE_S)

    def _hand_out(self, deltas: list[OutputDelta]) -> None:
        by_request: dict[str, list[OutputDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, given in by_request.items():
            outbox = self._outboxes.get(request_id)
            if outbox is None:
                continue
            if given[-1].request is not None:
                del self._outboxes[request_id]
            outbox.give(given)
        self._flush()

    def _take(self, add: Callable[[Engine], str], outbox: Outbox) -> None:
        try:
            if not self._accepting or not self._open:
                raise ResourceError(
                    "The engine is shutting down and accepts no new requests.", hint="Use another engine."
                )
            self._outboxes[add(self._engine)] = outbox
        except TwofoldError as error:
            outbox.fail(error)
            self._flush()

    def _abort(self, engine: Engine, request_id: str) -> RequestOutput | None:
        self._outboxes.pop(request_id, None)
        return engine.abort(request_id)

    def _fail_all(self, error: Exception) -> None:
        for request_id, outbox in list(self._outboxes.items()):
            self._engine.abort(request_id)
            outbox.fail(error)
        self._outboxes.clear()
        self._flush()
