"""The loop of an engine, and its clients in the same process.

EngineLoop      one turn: a step, or a wait until there is something to compute
EngineClient    runs the loop on the caller's thread while the caller waits for outputs
EngineThread    runs the loop on a thread of its own; other threads post requests to it

The client over a socket is ``fleet.fleet``; it talks to an ``EngineThread`` in another process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from twofold.core.errors import ResourceError, TwofoldError, UsageError
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.outputs import OutputDelta, RequestOutput

T = TypeVar("T")

IDLE_S: Final = 0.05
"""How long to wait if every request waits for its reader or its grammar: then deadlines are checked again."""
DEFERRED_S: Final = 0.002
"""How long to wait if all running sequences wait for their token masks."""


def never() -> bool:
    return False


class EngineLoop:
    """An engine with the event that ends its waits; ``wake`` may be called on any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._event = threading.Event()
        self.wake = self._event.set
        engine.wake_with(self.wake)

    def turn(self) -> list[OutputDelta]:
        """One step, or a short wait where nothing can be computed now. Raises what the step raises."""
        deltas = self.engine.step()
        if self.engine.idle and self.engine.has_work and not deltas:
            self.wait(DEFERRED_S if self.engine.scheduler.defers else IDLE_S)
        return deltas

    def wait(self, seconds: float | None) -> None:
        """Waits until ``wake``, or for this long."""
        self._event.wait(seconds)
        self._event.clear()


class EngineClient:
    """Requests to an engine in this process. The loop runs on the caller's thread, inside of these calls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = EngineLoop(engine)
        self._inboxes: dict[str, deque[OutputDelta]] = {}
        self._closed = False

    def turn(self) -> list[OutputDelta]:
        """One turn of the loop; its deltas, except those of requests in ``stream`` and ``run``."""
        self.check_open()
        others: list[OutputDelta] = []
        for delta in self._loop.turn():
            inbox = self._inboxes.get(delta.request_id)
            if inbox is None:
                others.append(delta)
            else:
                inbox.append(delta)
        return others

    def stream(self, request: EngineRequest, stopped: Callable[[], bool] = never) -> Generator[OutputDelta]:
        """Runs a request, delta by delta; the last delta has the whole output. Leaving the iterator aborts the request.

        ``stopped`` is called between steps; once it returns True, the request is aborted, and a last delta follows.
        Raises the error that ended the request.
        """
        request_id = self.engine.add(request)
        inbox = self._inboxes[request_id] = deque()
        try:
            while True:
                while not inbox and not stopped():
                    self.turn()
                if not inbox:
                    whole = self.engine.abort(request_id)
                    yield OutputDelta(request_id, 0, "", (), None, "abort", request=whole)
                    return
                delta = inbox.popleft()
                if delta.error is not None:
                    raise delta.error
                yield delta
                if delta.request is not None:
                    return
        finally:
            self.abort(request_id)

    def run(self, requests: Iterable[EngineRequest], stopped: Callable[[], bool] = never) -> list[RequestOutput]:
        """Runs requests together; their outputs, in order. Raises the first error, which ends all of them.

        ``stopped`` is called between steps; once it returns True, all requests are aborted, with their outputs so far.
        """
        request_ids: list[str] = []
        try:
            for request in requests:
                request_ids.append(request_id := self.engine.add(request))
                self._inboxes[request_id] = deque(maxlen=1)  # the last delta has the whole
            return [self._whole(request_id, stopped) for request_id in request_ids]
        finally:
            for request_id in request_ids:
                self.abort(request_id)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request and frees all it holds; its output so far, or None if it has ended before."""
        self._inboxes.pop(request_id, None)
        return self.engine.abort(request_id)

    def close(self) -> None:
        """Aborts all requests, and closes the engine."""
        self._closed = True
        for request_id in list(self._inboxes):
            self.abort(request_id)
        self.engine.close()

    def check_open(self) -> None:
        """Raises UsageError if the client is closed."""
        if self._closed:
            raise UsageError("This LLM is closed.", hint="Create a new one.")

    def _whole(self, request_id: str, stopped: Callable[[], bool]) -> RequestOutput:
        inbox = self._inboxes[request_id]
        while not inbox or (inbox[0].request is None and inbox[0].error is None):
            if stopped():
                whole = self.abort(request_id)
                assert whole is not None, "a request without a last delta has not ended"
                return whole
            self.turn()
        if inbox[0].error is not None:
            raise inbox[0].error
        assert inbox[0].request is not None
        return inbox[0].request


class Outbox(Protocol):
    """Receives the results of one request on the engine's thread, so its methods must return quickly."""

    def give(self, deltas: list[OutputDelta]) -> None:
        """The deltas of a step; the last delta of a request has the whole output."""
        ...

    def fail(self, error: Exception) -> None:
        """The request ended without an output."""
        ...


class EngineThread:
    """Runs an engine's loop on a thread until ``close``. ``flush`` is called after outboxes got results, once for all.

    When a step fails, the requests that it ended get the error; the loop continues with the others.
    """

    def __init__(self, engine: Engine, flush: Callable[[], None]) -> None:
        self._engine = engine
        self._loop = EngineLoop(engine)
        engine.deliver_to(self._hand_out)
        self._flush = flush
        self._commands: deque[Callable[[], object]] = deque()
        self._outboxes: dict[str, Outbox] = {}
        self._lock = threading.Lock()
        self._open = True
        self._accepting = True
        self._thread = threading.Thread(target=self._run, name="twofold-engine", daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._outboxes)

    def submit(self, request: EngineRequest, outbox: Outbox) -> None:
        """Queues a checked request that has an id. Where the engine refuses it, the outbox gets the error."""
        self._post(lambda: self._take(request, outbox))

    def abort(self, request_id: str) -> Future[RequestOutput | None]:
        """Ends a request within a step; its output so far, None if it has ended before."""
        return self.call(lambda _: self._abort(request_id))

    def abandon(self, request_id: str) -> None:
        """Aborts a request whose output is not wanted."""
        with suppress(ResourceError):
            self._post(lambda: self._abort(request_id))

    def abort_all(self, prefix: str) -> None:
        """Aborts the requests whose ids begin so; on the engine's thread. Their output is not wanted."""
        for request_id in [each for each in self._outboxes if each.startswith(prefix)]:
            self._abort(request_id)

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
        """Refuses new requests from now on; running ones continue."""
        self._accepting = False

    def close(self) -> None:
        """Aborts all requests, and ends the thread. Closing twice is fine."""
        with self._lock:
            self._open = False
        self._loop.wake()
        self._thread.join()

    def _post(self, command: Callable[[], object]) -> None:
        with self._lock:
            if not self._open:
                raise ResourceError("The engine is closed.", hint="Create a new one.")
            self._commands.append(command)
        self._loop.wake()

    def _run(self) -> None:
        while self._open:
            self._run_commands()
            if self._engine.has_work:
                self._turn()
            elif self._open:
                self._loop.wait(None)
        self._fail_all(ResourceError("The engine was closed.", hint="Send it to another engine."), list(self._outboxes))
        self._run_commands()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _turn(self) -> None:
        try:
            self._loop.turn()
        except Exception as error:
            self._fail_all(error, [request_id for request_id in self._outboxes if not self._engine.has(request_id)])

    def _hand_out(self, deltas: list[OutputDelta]) -> None:
        by_request: dict[str, list[OutputDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, given in by_request.items():
            outbox = self._outboxes.get(request_id)
            if outbox is None:
                continue
            last = given[-1]
            if last.request is not None or last.error is not None:
                del self._outboxes[request_id]
            if last.error is not None and last.request is None:
                outbox.fail(last.error)
            else:
                outbox.give(given)
        self._flush()

    def _take(self, request: EngineRequest, outbox: Outbox) -> None:
        try:
            if not self._accepting or not self._open:
                raise ResourceError(
                    "The engine is shutting down and accepts no new requests.", hint="Use another engine."
                )
            self._outboxes[self._engine.add(request)] = outbox
        except TwofoldError as error:
            outbox.fail(error)
            self._flush()

    def _abort(self, request_id: str) -> RequestOutput | None:
        self._outboxes.pop(request_id, None)
        return self._engine.abort(request_id)

    def _fail_all(self, error: Exception, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)
            self._outboxes.pop(request_id).fail(error)
        self._flush()
