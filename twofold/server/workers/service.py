"""An engine for the server's process: messages in, messages out.

    reader thread    receives → check, submit, abort, hold     engine thread    step → one StepOutputs

StepOutputs has the deltas of all requests and the reports of steps since the last message; four times a second, and
when no work is left, also a snapshot of the engine.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from twofold.core.clock import MonotonicClock
from twofold.core.errors import TwofoldError, WorkerError
from twofold.core.params import SamplingParams
from twofold.core.report import BlockCounts, EngineSnapshot, PinCounts, RequestMetrics, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.load import LoadedModel, assemble
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.server.workers.messages import (
    Abort,
    Check,
    Checked,
    Failed,
    FromWorker,
    Gone,
    Hold,
    Ping,
    Pong,
    StepOutputs,
    ToWorker,
)

SNAPSHOT_S: Final = 0.25
SELF_TEST_S: Final = 120.0
SELF_TEST: Final = EngineRequest(
    (0,), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), request_id="self-test"
)


class Service:
    """A loaded model's engine. ``post`` sends a message to the server; any thread calls it."""

    def __init__(self, loaded: LoadedModel, post: Callable[[FromWorker], None]) -> None:
        self._engine = assemble(loaded, MonotonicClock())
        self._post = post
        self._deltas: list[OutputDelta] = []
        self._reports: list[StepReport] = []
        self._snapshot_at = 0.0
        self._thread = EngineThread(self._engine, self._flush)

    def test(self) -> None:
        """Generates one token. Raises the error if that fails."""
        test = _SelfTest()
        self._thread.submit(SELF_TEST, test)
        try:
            test.result(SELF_TEST_S)
        except TimeoutError:
            hint = "Use a smaller model."
            raise WorkerError(f"The model generated no token in {SELF_TEST_S:.0f} s.", hint=hint) from None
        except Exception as error:
            raise _for_server(error) from error
        self._thread.call(lambda engine: engine.observe(self)).result()

    def handle(self, message: ToWorker) -> None:
        """Handles a message, or passes it to the engine's thread."""
        match message:
            case EngineRequest():
                self._submit(message)
            case Abort(request_id):
                leaving = self._thread.abort(request_id)
                leaving.add_done_callback(lambda ended: self._gone(request_id, ended.result()))
            case Hold(request_id, hold):
                self._thread.call(lambda engine: engine.hold(request_id, hold=hold))
            case Ping(number):
                self._thread.call(lambda engine: self._pong(engine, number))
            case Check():
                self._thread.call(self._check)
            case _:
                raise AssertionError(f"a {type(message).__name__} after the first message")

    def deliver(self, deltas: list[OutputDelta]) -> None:
        """Adds to the next message; on the engine's thread."""
        self._deltas += deltas

    def fail(self, request_id: str, error: Exception) -> None:
        """Sends the error of a request without output."""
        self._post(Failed(request_id, _for_server(error)))

    def on_step(self, report: StepReport) -> None:
        """``Observer``: reports are sent with the next message, at the latest with the next snapshot."""
        self._reports.append(report)
        if report.ended - self._snapshot_at >= SNAPSHOT_S:
            self._send()

    def on_request(self, report: RequestMetrics) -> None:
        """``Observer``: a request's last delta has its report."""

    def _submit(self, request: EngineRequest) -> None:
        try:
            self._engine.check(request)
        except TwofoldError as error:
            self.fail(request.request_id, error)
        else:
            self._thread.submit(request, _Outbox(self, request))

    def _gone(self, request_id: str, remains: RequestOutput | None) -> None:
        """On the engine's thread."""
        self._post(Gone(request_id, None if remains is None else replace(remains, prompt_token_ids=())))
        if not self._engine.has_work:
            self._send()

    def _pong(self, engine: Engine, number: int) -> None:
        if not engine.has_work:
            engine.expire()
        self._post(Pong(number, snapshot(engine)))

    def _check(self, engine: Engine) -> None:
        fault = None
        try:
            engine.check_idle()
            assert not engine.has_work, "there is work"
        except AssertionError as error:
            fault = str(error)
        self._post(Checked(fault))

    def _flush(self) -> None:
        if self._deltas:
            self._send()

    def _send(self) -> None:
        now, current = self._engine.now(), None
        if now - self._snapshot_at >= SNAPSHOT_S or not self._engine.has_work:
            self._snapshot_at = now
            current = snapshot(self._engine)
        deltas, self._deltas = self._deltas, []
        reports, self._reports = self._reports, []
        self._post(StepOutputs(deltas, reports, current))


def snapshot(engine: Engine) -> EngineSnapshot:
    """The state of an engine; on its thread."""
    scheduler = engine.scheduler
    manager, counters = scheduler.manager, scheduler.manager.counters
    return EngineSnapshot(
        waiting=scheduler.waiting,
        running=scheduler.running,
        blocks=BlockCounts(sum(manager.free), sum(manager.cached), sum(manager.held)),
        pinned=sum(manager.pinned),
        block_size=manager.block_size,
        queries=counters.queries,
        hits=counters.hits,
        evicted=counters.evicted,
        pins=tuple(
            PinCounts(ttl_s, pins.written, pins.read, pins.expired, pins.refused)
            for ttl_s, pins in sorted(counters.pins.items())
        ),
        preemptions=scheduler.preemptions,
        swaps=scheduler.swaps,
        prediction_error=scheduler.step_time.error,
    )


class _Outbox:
    """Passes on the deltas of a stream, or the last delta of another request, which has the whole output."""

    def __init__(self, service: Service, request: EngineRequest) -> None:
        self._stream = request.stream
        self._service = service
        self._request_id = request.request_id

    def give(self, deltas: list[OutputDelta]) -> None:
        last = deltas[-1]
        if last.request is not None:  # the server has the prompt
            deltas[-1] = replace(last, request=replace(last.request, prompt_token_ids=()))
        elif not self._stream:
            return
        self._service.deliver(deltas if self._stream else deltas[-1:])

    def fail(self, error: Exception) -> None:
        self._service.fail(self._request_id, error)


class _SelfTest(Future[None]):
    """The outbox of the self-test; done when its request has ended."""

    def give(self, deltas: list[OutputDelta]) -> None:
        last = deltas[-1]
        if last.request is None:
            return
        if last.error is None:
            self.set_result(None)
        else:
            self.set_exception(last.error)

    def fail(self, error: Exception) -> None:
        self.set_exception(error)


def _for_server(error: Exception) -> TwofoldError:
    """The error for the server. The traceback of an unexpected one is printed without its message, which may quote a
    request."""
    if isinstance(error, TwofoldError):
        return error
    kind = type(error).__name__
    sys.stderr.write(f"twofold worker: {kind}\n{''.join(traceback.format_tb(error.__traceback__))}")
    return WorkerError(f"The engine failed with a {kind}.", hint="Retry; the server log has the cause.")
