"""A worker process: runs an engine for the server's process, over a socket.

    reader thread    receives LoadModel, then requests, Abort, SetPaused, Ping, Watch, Look, Foresee, ListBlocks
    engine thread    runs steps; sends one StepOutputs after each
    beat thread      sends a Beat every quarter of a second, however long a step or the loading takes

StepOutputs has the deltas of all requests and the reports of steps since the last message; four times a second, and
when no work is left, also a snapshot of the engine, and what requests without a stream have so far, so that another
worker can go on with them. While lanes are watched, it is sent ten times a second at least. To a hub that routes
requests it also has the engine's work and its new blocks, and is sent after each step with prompt rows.

The process receives the path of a model, loads and tests it, and serves until the server closes its end of the socket.
It ignores interrupts; the server ends it. An uncaught exception on any thread ends the process; the server starts
another one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from twofold.core.clock import MonotonicClock
from twofold.core.errors import ResourceError, TwofoldError, WorkerError
from twofold.core.forecast import RequestProgress
from twofold.core.params import SamplingParams
from twofold.core.report import BlockCounts, EngineFacts, EngineSnapshot, GroupFacts, RequestMetrics, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.config import EngineOptions
from twofold.engine.engine import Engine
from twofold.engine.kv.names import BlockKeys
from twofold.engine.load import LoadedModel, assemble, load_model
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.scheduler.lanes import TELL_S
from twofold.fleet.memory import plan_of
from twofold.fleet.messages import (
    LENGTH,
    Abort,
    Beat,
    BlockData,
    Codec,
    EndTransfer,
    Failed,
    FetchBlocks,
    Foresee,
    Foreseen,
    FromWorker,
    Gone,
    ListBlocks,
    LoadModel,
    Look,
    Ping,
    Pong,
    PrefetchBlocks,
    PullBlocks,
    Ready,
    Seen,
    SendBlocks,
    SetPaused,
    StepOutputs,
    ToWorker,
    Unloadable,
    Watch,
)
from twofold.fleet.telling import WorkTeller
from twofold.fleet.transfer import BlockTransfers
from twofold.host.paths import CacheFolders

CRASHED: Final = 70
"""Exit code after an uncaught exception: sysexits.h's internal software error."""
MAX_UNSENT: Final = 64 << 20
"""Maximum bytes that wait until the server reads them; beyond, senders wait, too."""
SNAPSHOT_S: Final = 0.25
BEAT_S: Final = 0.25
PROGRESS_S: Final = 0.1
"""Minimum seconds between two messages about the progress of requests."""
SELF_TEST_S: Final = 120.0
SELF_TEST: Final = EngineRequest(
    (0,), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), request_id="self-test"
)


def main(descriptor: int) -> None:
    """Serves over the connected socket with this file descriptor; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _crash
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.receive()
    if isinstance(first, LoadModel):
        worker = _Worker(channel, first)
        worker.serve()
        worker.save()
    os._exit(0)  # without waiting for the engine's thread


class _Worker:
    """Receives messages while another thread loads the model, so that the end of the server is noticed meanwhile."""

    def __init__(self, channel: Channel, load: LoadModel) -> None:
        self._channel = channel
        self._service: Service | None = None
        threading.Thread(target=self._load, args=(load,), name="twofold-load", daemon=True).start()
        threading.Thread(target=self._beat, name="twofold-beat", daemon=True).start()

    def serve(self) -> None:
        """Handles messages until the server closes its end."""
        while (message := self._channel.receive()) is not None:
            if self._service is not None:
                self._service.handle(message)
            elif isinstance(message, Ping):
                self._channel.send(Pong(None))

    def save(self) -> None:
        """Saves the prefix cache, if the model has a KV store."""
        if self._service is not None:
            self._service.save()

    def _beat(self) -> None:
        while True:
            self._channel.send(Beat())
            time.sleep(BEAT_S)

    def _load(self, load: LoadModel) -> None:
        try:
            self._open(load)
        except TwofoldError as error:
            self._refuse(error)
        except MemoryError:
            hint = "Use a smaller model, or lower max_model_len or kv_cache_memory_bytes."
            self._refuse(ResourceError("There is not enough memory for the model.", hint=hint))

    def _open(self, load: LoadModel) -> None:
        folders = CacheFolders.of().create()
        options = EngineOptions(**load.options)
        path = Path(load.path)
        machine = options.open_backend().limits(path.stat().st_size)
        loaded = load_model(path, options, tokenizer_cache=folders.tokenizers, cache=folders.root)
        service = Service(loaded, self._channel.send, shares_clock=load.shares_clock, keys=load.keys)
        began = time.monotonic()
        service.test()
        test_s = time.monotonic() - began
        self._service = service
        config = loaded.config
        size = plan_of(config, loaded.spec, loaded.nbytes).bytes
        times = (loaded.load_s, loaded.compile_s, test_s)
        self._channel.send(Ready(config.context, size, machine, config.options.kv_type, facts(loaded), *times))

    def _refuse(self, error: TwofoldError) -> None:
        self._channel.send(Unloadable(error))
        self._channel.drain()
        os._exit(error.exit_code)


class Channel:
    """Messages over a connected socket. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._file = connection.makefile("rb")
        self._codec = Codec(ToWorker)
        self._waiting: deque[memoryview] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="twofold-write", daemon=True).start()

    def receive(self) -> ToWorker | None:
        """The next message; None after the server has closed its end."""
        with suppress(ConnectionError):
            head = self._file.read(LENGTH.size)
            if len(head) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                payload = self._file.read(length)
                if len(payload) == length:
                    message: ToWorker = self._codec.message(payload)
                    return message
        return None

    def send(self, message: FromWorker) -> None:
        """Sends a message, which is lost if the server has closed its end."""
        frame = memoryview(self._codec.frame(message))
        with self._changed:
            while self._bytes > MAX_UNSENT:
                self._changed.wait()
            if not self._waiting:
                frame = frame[self._sent(frame) :]
            if frame:
                self._waiting.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()

    def drain(self) -> None:
        """Waits until everything is written."""
        with self._changed:
            while self._waiting:
                self._changed.wait()

    def _sent(self, frame: memoryview) -> int:
        """Sends what the socket takes now; returns the number of bytes."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)  # the reader notices the end of the server and ends the process

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                frame = self._waiting[0]
            with suppress(OSError):
                self._socket.sendall(frame)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(frame)
                self._changed.notify_all()


class Service:
    """A loaded model's engine. ``post`` sends a message to the server; it is called on several threads.
    ``shares_clock`` and ``keys`` as in ``LoadModel``."""

    def __init__(
        self,
        loaded: LoadedModel,
        post: Callable[[FromWorker], None],
        *,
        shares_clock: bool = True,
        keys: BlockKeys | None = None,
    ) -> None:
        self._shares_clock = shares_clock
        self._engine = assemble(loaded, MonotonicClock())
        self._teller = None if keys is None else WorkTeller(self._engine, keys)
        self._post = post
        self._deltas: list[OutputDelta] = []
        self._reports: list[StepReport] = []
        self._snapshot_at = self._sent_at = self._progress_at = 0.0
        self._asking: dict[str, None] = {}
        self._whole: dict[str, _WholeOutbox] = {}
        self._progress: list[RequestProgress] = []
        self._lanes = self._engine.scheduler.lanes
        self._thread = EngineThread(self._engine, self._flush)
        self._transfers = (
            None if keys is None else BlockTransfers(self._thread, keys, loaded.runner.block_bytes, post, self._enter)
        )

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
                self._receive(message)
            case FetchBlocks() | PrefetchBlocks() | SendBlocks() | PullBlocks() | BlockData() | EndTransfer():
                assert self._transfers is not None, "only a hub that gave keys relays blocks"
                self._transfers.handle(message)
            case Abort(request_id):
                self._drop(request_id)
                leaving = self._thread.abort(request_id)
                leaving.add_done_callback(lambda ended: self._on_gone(request_id, ended.result()))
            case SetPaused(request_id, paused):
                self._drop(request_id, enter=True)
                self._thread.call(lambda engine: self._pause(engine, request_id, paused=paused))
            case Watch(on):
                self._thread.call(lambda engine: self._watch(engine, on=on))
            case Look():
                self._thread.call(lambda engine: self._post(Seen(engine.now(), engine.scheduler.picture())))
            case Foresee(number, token_ids, options):
                self._thread.call(lambda engine: self._post(Foreseen(number, engine.forecast(token_ids, options))))
            case Ping():
                self._thread.call(self._pong)
            case ListBlocks():
                self._thread.call(self._list_blocks)
            case _:
                raise AssertionError(f"a {type(message).__name__} after the first message")

    def save(self) -> None:
        """Ends all requests, and saves the prefix cache to the KV store, if there is one."""
        if self._engine.scheduler.store is not None:
            self._thread.close()
            self._engine.close()

    def deliver(self, deltas: list[OutputDelta]) -> None:
        """Adds deltas to the next message; on the engine's thread."""
        self._deltas += deltas

    def fail(self, request_id: str, error: Exception) -> None:
        """Sends the error of a request without output."""
        self._post(Failed(request_id, _for_server(error)))

    def on_step(self, report: StepReport) -> None:
        """``Observer``: the report is sent with the next message, at the latest with the next snapshot."""
        self._reports.append(report)
        if self._asking and report.ended - self._progress_at >= PROGRESS_S:
            self._note_progress(report.ended)
        since = report.ended - self._sent_at
        due = report.ended - self._snapshot_at >= SNAPSHOT_S or (since >= TELL_S and self._lanes.watched)
        if due or (self._teller is not None and report.prefill_rows):
            self._send()

    def _note_progress(self, now: float) -> None:
        """Sends how far requests are that ask for it and have no token."""
        self._progress_at = now
        found = self._engine.progress(list(self._asking))
        self._progress = list(found.values())
        for request_id in self._asking.keys() - found.keys():
            self._asking.pop(request_id, None)
        if self._progress:
            self._send()

    def on_request(self, report: RequestMetrics) -> None:
        """``Observer``: does nothing, because a request's last delta contains its report."""

    def _submit(self, request: EngineRequest) -> None:
        try:
            self._engine.check(request)
        except TwofoldError as error:
            self.fail(request.request_id, error)
        else:
            outbox = (
                StreamOutbox(self, request.request_id) if request.stream else self._whole_outbox(request.request_id)
            )
            self._thread.submit(request, outbox)
            if request.options.progress:
                self._thread.call(lambda engine: self._begin_progress(engine, request.request_id))

    def _enter(self, request: EngineRequest, fetch_s: float = 0.0) -> None:
        """Passes a request to the engine, after so many seconds of fetching; on several threads."""
        self._submit(replace(request, fetch_s=fetch_s) if fetch_s else request)
        if self._teller is not None:
            self._thread.call(self._count)

    def _receive(self, request: EngineRequest) -> None:
        if not self._shares_clock and request.arrival is not None:
            request = replace(request, arrival=self._engine.now() - request.arrived)
        if self._transfers is None or not self._transfers.hold(request):
            self._enter(request)

    def _drop(self, request_id: str, *, enter: bool = False) -> None:
        """A request that waits for blocks does not wait any more; it may enter the engine without them."""
        held = None if self._transfers is None else self._transfers.drop(request_id)
        if held is not None and enter:
            self._enter(held)

    def _count(self, _: Engine) -> None:
        """A request has reached the engine, or was refused."""
        assert self._teller is not None
        self._teller.received += 1

    def _list_blocks(self, _: Engine) -> None:
        assert self._teller is not None, "only a hub that gave keys asks for names"
        self._post(self._teller.blocks())

    def _whole_outbox(self, request_id: str) -> _WholeOutbox:
        outbox = self._whole[request_id] = _WholeOutbox(self, request_id)
        return outbox

    def forget(self, request_id: str) -> None:
        """A request without a stream has ended."""
        self._whole.pop(request_id, None)

    def _begin_progress(self, engine: Engine, request_id: str) -> None:
        """Sends how far a new request is, and notes that it asks."""
        self._asking[request_id] = None
        self._note_progress(engine.now())

    def _pause(self, engine: Engine, request_id: str, *, paused: bool) -> None:
        engine.pause(request_id, paused=paused)
        if self._lanes.watched:  # no step may follow
            self._send()

    def _watch(self, engine: Engine, *, on: bool) -> None:
        if on:
            engine.scheduler.watch(engine.now())
            self._send()
        else:
            self._lanes.unwatch()

    def _on_gone(self, request_id: str, output: RequestOutput | None) -> None:
        """Reports the end of an aborted request; on the engine's thread."""
        self.forget(request_id)
        self._post(Gone(request_id, None if output is None else replace(output, prompt_token_ids=())))
        if not self._engine.has_work:
            self._send()

    def _pong(self, engine: Engine) -> None:
        if not engine.has_work:
            engine.expire()
        self._post(Pong(snapshot(engine)))

    def _flush(self) -> None:
        if self._deltas:
            self._send()

    def _send(self) -> None:
        now, current = self._engine.now(), None
        self._sent_at = now
        if now - self._snapshot_at >= SNAPSHOT_S or not self._engine.has_work:
            self._snapshot_at = now
            current = snapshot(self._engine)
            for outbox in list(self._whole.values()):
                self._deltas += outbox.take()
        deltas, self._deltas = self._deltas, []
        reports, self._reports = self._reports, []
        progress, self._progress = self._progress, []
        told = None if self._teller is None else self._teller.work()
        self._post(StepOutputs(deltas, reports, current, self._lanes.take(), progress, told))


def facts(loaded: LoadedModel) -> EngineFacts:
    """What does not change in the engine of a loaded model."""
    config = loaded.config
    options, layout = config.options, config.options.kv_layout(loaded.spec, config.draft)
    sizes = zip(loaded.spec.kv_groups(config.context), config.kv_groups, strict=True)
    return EngineFacts(
        slots=config.limits.sequences,
        rows=min(config.limits.rows, loaded.runner.max_rows),
        block_size=options.block_size,
        budget="live" if options.token_budget == "live" else "fixed",
        tpot_target_s=options.tpot_target_s if options.token_budget == "live" else None,
        groups=tuple(GroupFacts(size.window, size.blocks, layout.block_bytes(group)) for group, size in sizes),
    )


def snapshot(engine: Engine) -> EngineSnapshot:
    """The state of an engine; to be called on its thread."""
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
        pins={ttl_s: replace(pins) for ttl_s, pins in sorted(counters.pins.items())},
        preemptions=scheduler.preemptions,
        swaps=scheduler.swaps,
        store=None if scheduler.store is None else scheduler.store.snapshot(),
        prediction_error=scheduler.step_time.error,
        step_weights=scheduler.step_time.weights if scheduler.step_time.ready else None,
        max_rows=scheduler.limits.rows,
        max_logit_rows=scheduler.limits.logit_rows,
        drafts=replace(scheduler.drafts, positions=list(scheduler.drafts.positions)),
    )


class StreamOutbox:
    """Passes on all deltas of a request."""

    def __init__(self, service: Service, request_id: str) -> None:
        self._service = service
        self._request_id = request_id

    def give(self, deltas: list[OutputDelta]) -> None:
        last = deltas[-1]
        if last.request is not None:  # the server has the prompt
            deltas[-1] = replace(last, request=replace(last.request, prompt_token_ids=()))
        self._service.deliver(deltas)

    def fail(self, error: Exception) -> None:
        self._service.fail(self._request_id, error)


class _WholeOutbox(StreamOutbox):
    """Passes on the last delta of a request, which has the whole output. The others go out with snapshots, joined."""

    def __init__(self, service: Service, request_id: str) -> None:
        super().__init__(service, request_id)
        self._deltas: dict[int, list[OutputDelta]] = {}

    def give(self, deltas: list[OutputDelta]) -> None:
        if deltas[-1].request is None and deltas[-1].error is None:
            for delta in deltas:
                self._deltas.setdefault(delta.index, []).append(delta)
            return
        self._service.forget(self._request_id)
        super().give(deltas[-1:])

    def fail(self, error: Exception) -> None:
        self._service.forget(self._request_id)
        super().fail(error)

    def take(self) -> list[OutputDelta]:
        """One delta for each completion that has grown since the last call."""
        grown, self._deltas = self._deltas, {}
        return [_joined(deltas) for deltas in grown.values()]


def _joined(deltas: list[OutputDelta]) -> OutputDelta:
    """The deltas of a completion as one."""
    last = deltas[-1]
    logprobs = None if last.logprobs is None else tuple(each for delta in deltas for each in delta.logprobs or ())
    text = "".join(delta.text for delta in deltas)
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    return replace(last, text=text, token_ids=tokens, logprobs=logprobs, made=None)


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
    """The error for the server; the traceback of an unexpected one is printed."""
    if isinstance(error, TwofoldError):
        return error
    kind = type(error)
    _print_fault(kind, error.__traceback__)
    return WorkerError(f"The engine failed with a {kind.__name__}.", hint="Retry; the server log has the cause.")


def _crash(failure: threading.ExceptHookArgs) -> None:
    """Ends the process after an uncaught exception."""
    _print_fault(failure.exc_type, failure.exc_traceback)
    sys.stderr.flush()
    os._exit(CRASHED)


def _print_fault(kind: type[BaseException], trace: TracebackType | None) -> None:
    """Prints an exception's type and traceback without its message, which may quote a request."""
    sys.stderr.write(f"twofold worker: {kind.__name__}\n{''.join(traceback.format_tb(trace))}")
