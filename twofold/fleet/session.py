"""One hub of a worker: the requests that it has sent, and what is reported to it.

Several hubs may share a worker (``fleet.worker``). In the engine the ids of each one's requests begin with a prefix of
its own, so two hubs may use the same id; none hears of another one's requests, whose work it sees in snapshots, in the
work that is reported to it, and in the reports of steps.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple

from twofold.core.errors import TwofoldError, WorkerError
from twofold.core.forecast import RequestProgress
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.report import EngineSnapshot, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.kv.names import BlockKeys
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.scheduler.forecast import EngineWork
from twofold.fleet.messages import (
    Abort,
    BlockData,
    EndTransfer,
    Failed,
    FetchBlocks,
    Foresee,
    Foreseen,
    FromWorker,
    Gone,
    ListBlocks,
    Look,
    Ping,
    PrefetchBlocks,
    PullBlocks,
    Ready,
    Seen,
    SendBlocks,
    SetPaused,
    StepOutputs,
    ToWorker,
    Watch,
)
from twofold.fleet.reporting import HubReporter
from twofold.fleet.transfer import STUCK_S, BlockTransfers
from twofold.models.ops import BlockMemory


class SharedEngine(NamedTuple):
    """The engine of a worker, for the sessions of its hubs; its calls are made on the engine's thread.

    leave   ends a session: nothing is reported to it any more
    send    reports to all hubs what is new
    report  reports to all hubs that route requests the work and the blocks, too
    pong    answers a hub's ping
    watch   starts or ends the events of lanes for a session
    """

    engine: Engine
    thread: EngineThread
    memory: BlockMemory
    leave: Callable[[HubSession], None]
    send: Callable[[], None]
    report: Callable[[], None]
    pong: Callable[[HubSession], None]
    watch: Callable[[HubSession, bool], None]


class HubSession:
    """A hub's use of a worker. ``post`` sends it a message, on several threads. ``shares_clock`` and ``keys`` as in
    ``LoadModel``; ``prefix`` begins the ids of its requests in the engine.

    reports   whether the engine's work and its blocks are reported to it
    watching  whether it gets the events of lanes
    asking    its requests that ask for their progress, by their ids in the engine
    """

    def __init__(
        self,
        shared: SharedEngine,
        post: Callable[[FromWorker], None],
        prefix: str = "",
        *,
        shares_clock: bool = True,
        keys: BlockKeys | None = None,
    ) -> None:
        self.prefix, self.post = prefix, post
        self.reports, self.watching = keys is not None, False
        self.asking: dict[str, None] = {}
        self._shared = shared
        self._engine, self._thread = shared.engine, shared.thread
        self._shares_clock = shares_clock
        self._keys = keys
        self._reporter: HubReporter | None = None
        self._transfers = (
            None
            if keys is None
            else BlockTransfers(shared.thread, keys, shared.memory, post, self._enter, shared.report)
        )
        self._received = 0
        self._deltas: list[OutputDelta] = []
        self._reports: list[StepReport] = []
        self._lanes: list[LaneEvent] = []
        self._progress: list[RequestProgress] = []
        self._whole: dict[str, _WholeOutbox] = {}

    # -- on the thread that receives the hub's messages ----------------------------------------------------------------

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
                leaving = self._thread.abort(self.prefix + request_id)
                leaving.add_done_callback(lambda ended: self._on_gone(request_id, ended))
            case SetPaused(request_id, paused):
                self._drop(request_id, enter=True)
                self._thread.call(lambda engine: self._pause(engine, request_id, paused=paused))
            case Watch(on):
                self._thread.call(lambda _: self._shared.watch(self, on))
            case Look():
                self._thread.call(lambda engine: self.post(Seen(engine.now(), engine.scheduler.picture())))
            case Foresee(number, token_ids, options):
                self._thread.call(lambda engine: self.post(Foreseen(number, engine.forecast(token_ids, options))))
            case Ping():
                self._thread.call(lambda _: self._shared.pong(self))
            case ListBlocks():
                self._thread.call(self._list_blocks)
            case _:
                raise AssertionError(f"a {type(message).__name__} after the first message")

    def close(self) -> None:
        """The hub has gone: ends its requests, and frees what its transfers hold."""
        if self._transfers is not None:
            self._transfers.close()
        self._thread.call(self._leave).result(STUCK_S)

    def _receive(self, request: EngineRequest) -> None:
        if not self._shares_clock and request.arrival is not None:
            request = replace(request, arrival=self._engine.now() - request.arrived)
        if self._transfers is None or not self._transfers.hold(request):
            self._enter(request)

    def _enter(self, request: EngineRequest, fetch_s: float = 0.0) -> None:
        """Passes a request to the engine, after so many seconds of fetching; on several threads."""
        request_id = request.request_id
        try:
            self._engine.check(request)
        except TwofoldError as error:
            self.fail(request_id, error)
        else:
            outbox = StreamOutbox(self, request_id) if request.stream else self._whole_outbox(request_id)
            own = replace(request, request_id=self.prefix + request_id, fetch_s=fetch_s or request.fetch_s)
            self._thread.submit(own, outbox)
            if request.options.progress:
                self._thread.call(lambda _: self._begin_progress(own.request_id))
        if self.reports:
            self._thread.call(self._count)

    def _drop(self, request_id: str, *, enter: bool = False) -> None:
        """A request that waits for blocks does not wait any more; it may enter the engine without them."""
        held = None if self._transfers is None else self._transfers.drop(request_id)
        if held is not None and enter:
            self._enter(held)

    def _whole_outbox(self, request_id: str) -> _WholeOutbox:
        outbox = self._whole[request_id] = _WholeOutbox(self, request_id)
        return outbox

    # -- on the engine's thread ----------------------------------------------------------------------------------------

    def begin(self, ready: Ready) -> None:
        """Says that the model is loaded, and which blocks the engine has already."""
        self.post(ready)
        if self._keys is not None:
            self._reporter = HubReporter(self._engine.scheduler.manager, self._keys)
            for blocks in self._reporter.blocks():
                if blocks.names:
                    self.post(blocks)

    def deliver(self, deltas: Sequence[OutputDelta], request_id: str) -> None:
        """Adds deltas of a request to the next message."""
        self._deltas += [replace(delta, request_id=request_id) for delta in deltas] if self.prefix else deltas

    @property
    def has_outputs(self) -> bool:
        """Whether deltas wait for the next message."""
        return bool(self._deltas)

    def fail(self, request_id: str, error: Exception) -> None:
        """Sends the error of a request without output."""
        self.post(Failed(request_id, for_server(error)))

    def forget(self, request_id: str) -> None:
        """A request without a stream has ended."""
        self._whole.pop(request_id, None)

    def add_report(self, report: StepReport) -> None:
        """Adds the report of a step to the next message."""
        self._reports.append(report)

    def note_progress(self) -> bool:
        """Notes how far requests are that ask for it and have no token; returns whether there are such."""
        found = self._engine.progress(list(self.asking))
        for request_id in self.asking.keys() - found.keys():
            self.asking.pop(request_id, None)
        self._progress = [
            replace(each, request_id=each.request_id.removeprefix(self.prefix)) for each in found.values()
        ]
        return bool(found)

    def add_lanes(self, events: Sequence[LaneEvent]) -> None:
        """Adds events of lanes to the next message: those of all hubs, but no id of another one's request."""
        self._lanes += [self._own_lane(event) for event in events] if self.prefix else events

    def send(self, current: EngineSnapshot | None, work: EngineWork | None, *, always: bool) -> None:
        """Sends what is new. Without ``always``, only if the hub waits for it: for outputs, progress, or lanes."""
        if current is not None:
            for outbox in list(self._whole.values()):
                self._deltas += outbox.take()
        if not (always or current is not None or self._deltas or self._progress or self._lanes):
            return
        deltas, self._deltas = self._deltas, []
        reports, self._reports = self._reports, []
        progress, self._progress = self._progress, []
        lanes, self._lanes = self._lanes, []
        report = None if self._reporter is None or work is None else self._reporter.report(self._received, work)
        self.post(StepOutputs(deltas, reports, current, lanes, progress, report))

    def _own_lane(self, event: LaneEvent) -> LaneEvent:
        if event.kind is not LaneKind.ARRIVE:
            return event
        own = event.text.startswith(self.prefix)
        return event._replace(text=event.text.removeprefix(self.prefix) if own else "")

    def _leave(self, _: Engine) -> None:
        self._shared.watch(self, False)
        if self._reporter is not None:
            self._reporter.close()
        self._shared.leave(self)
        self._thread.abort_all(self.prefix)
        if not self._engine.has_work:
            self._shared.send()

    def _count(self, _: Engine) -> None:
        """A request has reached the engine, or was refused."""
        self._received += 1

    def _list_blocks(self, _: Engine) -> None:
        assert self._reporter is not None, "only a hub that gave keys asks for names"
        for blocks in self._reporter.blocks():
            self.post(blocks)

    def _begin_progress(self, request_id: str) -> None:
        """Sends how far a new request is, and notes that it asks."""
        self.asking[request_id] = None
        if self.note_progress():
            self._shared.send()

    def _pause(self, engine: Engine, request_id: str, *, paused: bool) -> None:
        engine.pause(self.prefix + request_id, paused=paused)
        if engine.scheduler.lanes.watched:  # no step may follow
            self._shared.send()

    def _on_gone(self, request_id: str, ended: Future[RequestOutput | None]) -> None:
        """Reports the end of an aborted request."""
        self.forget(request_id)
        output = ended.result()
        self.post(Gone(request_id, None if output is None else whole(output, request_id)))
        if not self._engine.has_work:
            self._shared.send()


def whole(output: RequestOutput, request_id: str) -> RequestOutput:
    """A request's output under the hub's id, without the prompt, which the hub has."""
    return replace(output, request_id=request_id, prompt_token_ids=())


class StreamOutbox:
    """Passes on all deltas of a request."""

    def __init__(self, session: HubSession, request_id: str) -> None:
        self._session = session
        self._request_id = request_id

    def give(self, deltas: list[OutputDelta]) -> None:
        last = deltas[-1]
        if last.request is not None:
            deltas[-1] = replace(last, request=whole(last.request, self._request_id))
        self._session.deliver(deltas, self._request_id)

    def fail(self, error: Exception) -> None:
        self._session.fail(self._request_id, error)


class _WholeOutbox(StreamOutbox):
    """Passes on the last delta of a request, which has the whole output. The others go out with snapshots, joined."""

    def __init__(self, session: HubSession, request_id: str) -> None:
        super().__init__(session, request_id)
        self._deltas: dict[int, list[OutputDelta]] = {}

    def give(self, deltas: list[OutputDelta]) -> None:
        if deltas[-1].request is None and deltas[-1].error is None:
            for delta in deltas:
                self._deltas.setdefault(delta.index, []).append(delta)
            return
        self._session.forget(self._request_id)
        super().give(deltas[-1:])

    def fail(self, error: Exception) -> None:
        self._session.forget(self._request_id)
        super().fail(error)

    def take(self) -> list[OutputDelta]:
        """One delta for each completion that has grown since the last call."""
        grown, self._deltas = self._deltas, {}
        return [_joined(deltas, self._request_id) for deltas in grown.values()]


def _joined(deltas: list[OutputDelta], request_id: str) -> OutputDelta:
    """The deltas of a completion as one, under the hub's id."""
    last = deltas[-1]
    logprobs = None if last.logprobs is None else tuple(each for delta in deltas for each in delta.logprobs or ())
    text = "".join(delta.text for delta in deltas)
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    return replace(last, request_id=request_id, text=text, token_ids=tokens, logprobs=logprobs, made=None)


def for_server(error: Exception) -> TwofoldError:
    """The error for the server; the traceback of an unexpected one is printed."""
    if isinstance(error, TwofoldError):
        return error
    kind = type(error)
    print_fault(kind, error.__traceback__)
    return WorkerError(f"The engine failed with a {kind.__name__}.", hint="Retry; the server log has the cause.")


def print_fault(kind: type[BaseException], trace: TracebackType | None) -> None:
    """Prints an exception's type and traceback without its message, which may quote a request."""
    sys.stderr.write(f"twofold worker: {kind.__name__}\n{''.join(traceback.format_tb(trace))}")
