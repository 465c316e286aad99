"""An engine that is used from another process: messages in, messages out.

    reader thread    receives → check, submit, abort, hold     engine thread    step → one Step message

A step's message carries the deltas of all requests, the reports of the steps since the last message, and four times a
second how the engine stands; once more when nothing is left to do.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
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
    """A loaded model's engine. ``post`` sends a message to the server; several threads call it."""

    def __init__(self, loaded: LoadedModel, post: Callable[[FromWorker], None]) -> None:
        self._engine = assemble(loaded, MonotonicClock())
        self._post = post
        self._deltas: list[OutputDelta] = []
        self._reports: list[StepReport] = []
        self._snapshot_at = 0.0
        self._thread = EngineThread(self._engine, self._flush)

    def test(self) -> None:
        """Answers a request of one token. Raises what stands in the way of that."""
        tester = _Tester()
        self._thread.submit(SELF_TEST, tester)
        tester.wait()
        self._thread.call(lambda engine: engine.observe(self)).result()

    def obey(self, message: ToWorker) -> None:
        """Does what a message asks for, or queues it for the engine's thread."""
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
                raise AssertionError(f"a {type(message).__name__} came late")

    def deliver(self, deltas: list[OutputDelta]) -> None:
        """Adds to the next message; on the engine's thread."""
        self._deltas += deltas

    def fail(self, request_id: str, error: Exception) -> None:
        """Tells that a request ended without an answer."""
        self._post(Failed(request_id, _told(error)))

    def on_step(self, report: StepReport) -> None:
        """``Observer``: reports wait for the next message, but not longer than a snapshot."""
        self._reports.append(report)
        if report.ended - self._snapshot_at >= SNAPSHOT_S:
            self._send()

    def on_request(self, report: RequestMetrics) -> None:
        """``Observer``: reports of requests travel in their last deltas."""

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
    """How an engine stands; on its thread."""
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
    """Where the results of one request go: every delta of a stream, else the last one alone, which has all."""

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


class _Tester:
    """The outbox of the self-test."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    def give(self, deltas: list[OutputDelta]) -> None:
        if deltas[-1].request is not None:
            self._error = deltas[-1].error
            self._ended.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._ended.set()

    def wait(self) -> None:
        if not self._ended.wait(SELF_TEST_S):
            raise WorkerError(f"The model made no token in {SELF_TEST_S:.0f} s.", hint="Use a smaller model.")
        if self._error is not None:
            raise _told(self._error)


def _told(error: Exception) -> TwofoldError:
    """An error as the server hears of it. Of one that nobody foresaw it hears the kind; the place goes to stderr,
    without the message, which may quote what a caller wrote."""
    if isinstance(error, TwofoldError):
        return error
    kind = type(error).__name__
    sys.stderr.write(f"twofold worker: {kind}\n{''.join(traceback.format_tb(error.__traceback__))}")
    return WorkerError(f"The engine failed with a {kind}.", hint="Retry; the server log has the cause.")
