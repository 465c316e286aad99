"""A model in a process of its own, which is started again when it ends.

    state      may become      when
    loading    ready           the model is loaded
               failed          it cannot be loaded, or its process ended too often
    ready      loading         its process ended
               failed          its process ended too often
    any        closed          ``close`` is called

When a process ends, requests with output get a WorkerError, because the rest of their output cannot be reproduced; the
others are sent to the next process, MAX_TRIES times in all. If processes end in quick succession, the pause before the
next start doubles, and finally the model fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal, Protocol

from twofold.api.base import ModelFacts
from twofold.core.clock import MonotonicClock
from twofold.core.errors import ParameterError, ResourceError, TwofoldError, WorkerError
from twofold.core.forecast import Forecast, RequestProgress
from twofold.core.lanes import LaneEvent
from twofold.core.report import EngineSnapshot, KVPicture, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.compress import ReadingTime
from twofold.engine.engine import SAVE_S
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.stream import OutputStream
from twofold.host.versions import NUMERICS, twofold_version
from twofold.observe.served import ServedRequest
from twofold.planner.predict.phase import local_steps
from twofold.planner.predict.steps import StepPredictor
from twofold.server.models.reading import ModelReading
from twofold.server.response_cache import model_identity
from twofold.server.workers.link import END_S, WorkerLink
from twofold.server.workers.messages import (
    Abort,
    Failed,
    Foresee,
    Foreseen,
    FromWorker,
    Gone,
    LoadModel,
    Look,
    Ping,
    Pong,
    Ready,
    Seen,
    SetPaused,
    StepOutputs,
    ToWorker,
    Unloadable,
    Watch,
)

WorkerState = Literal["loading", "ready", "failed", "closed"]

log = logging.getLogger("twofold.serve")
MAX_TRIES: Final = 3
"""Maximum number of processes that a request is sent to, if they end before its first delta."""
MAX_UNREAD: Final = 1 << 20
"""Maximum bytes of a stream that its reader has not taken; a stream with more is cut."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a worker process counts as hung, and how often it is restarted. Times are in seconds.

    ping_s      interval of pings
    idle_s      time without a response after which an idle process is killed
    busy_s      the same for a process with requests: it is longer, because a step of a large model takes long
    ends        number of ends within ``ends_within_s`` after which the process is not restarted
    pause_s     pause before the second restart in that time; it doubles with each further one
    """

    ping_s: float = 5.0
    idle_s: float = 30.0
    busy_s: float = 300.0
    ends: int = 5
    ends_within_s: float = 60.0
    pause_s: float = 0.25


class EngineObserver(Protocol):
    """Receives the reports of the engines of all models, on the event loop."""

    def on_step(self, model: str, report: StepReport) -> None: ...

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None: ...

    def on_lanes(self, model: str, events: Sequence[LaneEvent], served: Callable[[str], ServedRequest | None]) -> None:
        """Events of a watched model; ``served`` returns the record of the request to which a job belongs."""

    def on_picture(self, model: str, at: float, picture: KVPicture) -> None: ...

    def on_restart(self, model: str) -> None:
        """The model's process ended unexpectedly and is restarted."""


@dataclass(slots=True)
class DispatchHandle:
    """One job on its way through a model's processes.

    direct    takes a delta at once and returns True, or returns False. It is called while the job's reader waits for a
              delta, and saves waking the reader; never with the last delta, or with one that has an error
    retries   how often it was sent to the next process, because one ended before its first delta
    served    the record of its request
    progress  is called with how far it is, until its first token, if it asks for that
    """

    direct: Callable[[OutputDelta], bool] | None = None
    progress: Callable[[RequestProgress], None] | None = None
    retries: int = 0
    served: ServedRequest | None = None
    _left: asyncio.Future[RequestOutput | None] | None = None

    def leave(self) -> asyncio.Future[RequestOutput | None]:
        """The job's reader has left. Returns the future for its output so far, None if that is unknown."""
        self._left = asyncio.get_running_loop().create_future()
        return self._left

    async def partial_output(self, limit_s: float) -> RequestOutput | None:
        """The output of an aborted job; None for any other job, and if it does not arrive in time."""
        if self._left is None:
            return None
        done, _ = await asyncio.wait({self._left}, timeout=limit_s)
        return self._left.result() if done else None


class WorkerModel:
    """A model file in a worker process.

    name       its name for observers and callers
    identity   digest of its file and options, on which completions depend besides the request
    reading    the model file without its weights
    options    ``EngineKeywords`` to load it with
    error      why it failed
    watched    whether its engine sends events of lanes
    ceilings   predicts steps on this machine; None until the machine was measured
    snapshot   the last one of its engine
    """

    def __init__(
        self,
        name: str,
        reading: ModelReading,
        options: Mapping[str, Any],
        observers: Sequence[EngineObserver] = (),
        policy: RestartPolicy | None = None,
    ) -> None:
        self.name = name
        self._reading = reading
        self._load = LoadModel(str(reading.path), dict(options))
        versions = {"version": twofold_version(), "numerics": NUMERICS}
        self.identity = model_identity(reading.path, {**options, **versions})
        self._observers = tuple(observers)
        self._policy = policy or RestartPolicy()
        self._clock = MonotonicClock()
        self._streams: dict[str, WorkerStream] = {}
        self._leaving: dict[str, WorkerStream] = {}
        self._exits: deque[float] = deque()
        self._numbers = count()
        self._forecasts: dict[int, asyncio.Future[Forecast]] = {}
        self.state: WorkerState = "loading"
        self._changed = asyncio.Event()
        self._link: WorkerLink | None = None
        self._ready: Ready | None = None
        self._facts: ModelFacts | None = None
        self.ceilings: StepPredictor | None = None
        self.error: TwofoldError | None = None
        self.failed_at = 0.0
        self.snapshot: EngineSnapshot | None = None
        self._waiting = 0
        self._unanswered = 0
        self.watched = False
        self._task: asyncio.Task[None] | None = None

    @property
    def facts(self) -> ModelFacts:
        assert self._facts is not None, "the model was never ready"
        return self._facts

    @property
    def ready(self) -> Ready:
        """The message that the process sent when it had loaded the model."""
        assert self._ready is not None, "the model was never ready"
        return self._ready

    @property
    def queued(self) -> int:
        """An upper bound of waiting requests: sequences that waited before the last step, and requests since then; but
        at most the number of requests without output."""
        return min(self._waiting, sum(not stream.began for stream in self._streams.values()))

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return None if self._link is None else self._link.pid

    def reading_time(self) -> ReadingTime:
        """Predicts the seconds of prompts, by the step-time model of its engine at the last snapshot."""
        last = self.snapshot
        if last is None:
            return ReadingTime.unknown()
        return ReadingTime(last.step_weights, last.max_rows, last.max_logit_rows)

    def watch(self, *, on: bool) -> None:
        """Starts or ends the events of lanes, also of later processes."""
        self.watched = on
        if self.state == "ready":
            self._send(Watch(on))

    def look(self) -> None:
        """Asks the engine for a picture of its KV cache, which observers get."""
        if self.state == "ready":
            self._send(Look())

    async def forecast(self, job: EngineRequest) -> Forecast:
        """What a request would meet if it arrived now. Nothing changes. Raises WorkerError without a process."""
        if self.state != "ready":
            raise self._unavailable()
        number, found = next(self._numbers), asyncio.get_running_loop().create_future()
        self._forecasts[number] = found
        try:
            self._send(Foresee(number, job.token_ids, job.options))
            forecast: Forecast = await found
            return forecast
        finally:
            del self._forecasts[number]

    async def start(self) -> None:
        """Loads the model. If that fails, closes it and raises the error."""
        self._task = asyncio.create_task(self._run_processes(), name=f"worker of {self.name}")
        try:
            while self.state == "loading":
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            await self.close()
            raise
        if self.error is not None:
            await self.close()
            raise self.error

    async def close(self) -> None:
        """Ends the process and all requests. Further calls do nothing."""
        self._set_state("closed")
        life, self._task = self._task, None
        if life is not None:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life
        self._break_off(ResourceError(f"The model {self.name} was unloaded.", hint="Retry."))

    async def run(
        self, request: EngineRequest, handle: DispatchHandle | None = None
    ) -> AsyncGenerator[OutputDelta, None]:
        """Runs a request; the last delta has its whole output. Leaving the iterator aborts it; ``handle`` then gets
        its output so far.

        Raises TwofoldError: BusyError if it waited too long, WorkerError if the model's process ended after the first
        delta (before that, the request is resubmitted to the next process).
        """
        request_id = request.request_id
        stream = self._open(replace(request, arrival=self._clock.now()), handle or DispatchHandle())
        whole = False
        try:
            while not whole:
                delta = await stream.take()
                if delta.request is not None:
                    whole = True
                    delta = replace(delta, request=stream.with_prompt(delta.request))
                yield delta
        finally:
            del self._streams[request_id]
            if not whole:
                self._leave(stream)

    def _open(self, request: EngineRequest, handle: DispatchHandle) -> WorkerStream:
        request_id = request.request_id
        if self.state in {"failed", "closed"}:
            raise self._unavailable()
        if request_id in self._streams or request_id in self._leaving:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        stream = WorkerStream(request, handle, lambda paused: self._send(SetPaused(request_id, paused)))
        self._streams[request_id] = stream
        if self.state == "ready":
            self._submit(stream)
        return stream

    def _submit(self, stream: WorkerStream) -> None:
        stream.tries += 1
        stream.handle.retries = stream.tries - 1
        self._waiting += 1
        self._send(stream.request)

    def _leave(self, stream: WorkerStream) -> None:
        """Aborts a request whose reader has left; its output so far arrives later."""
        stream.leave()
        if stream.over or self.state != "ready" or self._link is None:
            stream.settle()
            return
        request_id = stream.request.request_id
        self._leaving[request_id] = stream
        self._link.send(Abort(request_id))

    def _send(self, message: ToWorker) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _run_processes(self) -> None:
        """Starts one process after the other; if they end quickly, pauses before the third and further ones."""
        try:
            while self.state == "loading":
                recent = len(self._exits)
                if recent > 1:
                    await asyncio.sleep(self._policy.pause_s * 2 ** (recent - 2))
                await self._run_process()
        except TwofoldError as error:
            self._fail(error)

    async def _run_process(self) -> None:
        """Starts a process and waits until it ends."""
        link = await WorkerLink.open(self._on_message)
        self._link, self._unanswered = link, 0
        pinging = asyncio.create_task(self._ping(link))
        try:
            link.send(self._load)
            await link.ended.wait()
        finally:
            pinging.cancel()
            self._link = None
            end_s = END_S if self._load.options.get("kv_store") is None else SAVE_S + END_S
            status = await asyncio.shield(asyncio.ensure_future(link.close(end_s)))
            self._on_exit(status)

    def _on_exit(self, status: int) -> None:
        """Handles the end of the process."""
        self._waiting = 0
        for stream in self._leaving.values():
            stream.settle()
        self._leaving.clear()
        for asked in self._forecasts.values():
            if not asked.done():
                asked.set_exception(self._unavailable())
        if self.state in {"failed", "closed"}:
            return
        served = self.state == "ready"
        now = time.monotonic()
        self._exits.append(now)
        while now - self._exits[0] > self._policy.ends_within_s:
            self._exits.popleft()
        error = WorkerError(
            f"The process of the model {self.name} exited ({_cause(status)}).",
            hint="Retry; the process is being restarted.",
        )
        self._break_off(error, lambda stream: stream.began or stream.tries >= MAX_TRIES)
        if self._ready is None or len(self._exits) >= self._policy.ends:
            self._fail(error)
            return
        self._set_state("loading")
        log.warning("the process of the model %s exited (%s); it is restarted", self.name, _cause(status))
        if served:
            for observer in self._observers:
                observer.on_restart(self.name)

    def _fail(self, error: TwofoldError) -> None:
        """Makes the model unusable."""
        self.error, self.failed_at = error, time.monotonic()
        self._set_state("failed")
        self._break_off(self._unavailable())

    def _unavailable(self) -> TwofoldError:
        reason = "It was unloaded." if self.error is None else str(self.error)
        return WorkerError(f"The model {self.name} is not available. {reason}", hint="Retry later.")

    def _set_state(self, state: WorkerState) -> None:
        self.state = state
        self._changed.set()

    def _break_off(self, error: TwofoldError, concerns: Callable[[WorkerStream], bool] = lambda _: True) -> None:
        for stream in self._streams.values():
            if concerns(stream):
                stream.break_off(error)

    async def _ping(self, link: WorkerLink) -> None:
        """Pings the process, and kills it if it does not respond."""
        policy = self._policy
        while True:
            await asyncio.sleep(policy.ping_s)
            limit = policy.busy_s if self._streams or self.state == "loading" else policy.idle_s
            if self._unanswered * policy.ping_s >= limit:
                link.kill()
            self._unanswered += 1
            link.send(Ping())

    def _on_message(self, message: FromWorker) -> None:
        self._unanswered = 0
        match message:
            case StepOutputs():
                self._on_outputs(message)
            case Failed(request_id, error):
                stream = self._streams.get(request_id)
                if stream is not None:
                    stream.break_off(error)
            case Gone(request_id, output):
                leaving = self._leaving.pop(request_id, None)
                if leaving is not None:
                    leaving.settle(output)
            case Seen(at, picture):
                for observer in self._observers:
                    observer.on_picture(self.name, at, picture)
            case Foreseen(number, forecast):
                if (asked := self._forecasts.get(number)) is not None and not asked.done():
                    asked.set_result(forecast)
            case Pong(snapshot):
                self._on_snapshot(snapshot)
            case Ready():
                self._on_ready(message)
            case Unloadable(error):
                self._fail(error)

    def _on_outputs(self, step: StepOutputs) -> None:
        streams, leaving = self._streams, self._leaving
        if step.lanes:
            for observer in self._observers:
                observer.on_lanes(self.name, step.lanes, self._served)
        for progress in step.progress:
            asker = streams.get(progress.request_id)
            if asker is not None and asker.handle.progress is not None:
                asker.handle.progress(progress)
        for delta in step.deltas:
            stream = streams.get(delta.request_id) or leaving.get(delta.request_id)
            if stream is not None:
                stream.push(delta)
        if step.reports:
            self._waiting = step.reports[-1].waiting
            for observer in self._observers:
                for report in step.reports:
                    observer.on_step(self.name, report)
        self._on_snapshot(step.snapshot)

    def _served(self, request_id: str) -> ServedRequest | None:
        stream = self._streams.get(request_id) or self._leaving.get(request_id)
        return None if stream is None else stream.handle.served

    def _on_snapshot(self, snapshot: EngineSnapshot | None) -> None:
        if snapshot is None:
            return
        self.snapshot = snapshot
        self._waiting = snapshot.waiting
        for observer in self._observers:
            observer.on_snapshot(self.name, snapshot)

    def _on_ready(self, ready: Ready) -> None:
        """The model is loaded: sends the waiting requests to it."""
        self._ready = ready
        self._facts = self._facts or replace(self._reading.facts(ready.context), reading_time=self.reading_time)
        if ready.machine is not None:
            self.ceilings = local_steps(self._reading.spec, ready.machine, ready.kv_type)
        self._set_state("ready")
        if self.watched:
            self._send(Watch(True))
        for stream in self._streams.values():
            self._submit(stream)


def _cause(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


class WorkerStream(OutputStream):
    """The stream of ``request``, which ``tries`` processes have received."""

    def __init__(self, request: EngineRequest, handle: DispatchHandle, pause: Callable[[bool], None]) -> None:
        super().__init__(pause, MAX_UNREAD)
        self.request = request
        self.handle = handle
        self.tries = 0
        self._left: asyncio.Future[RequestOutput | None] | None = None

    def push(self, delta: OutputDelta) -> None:
        """Adds a delta, or passes it on at once; after ``leave`` keeps only the whole output."""
        if self._left is None:
            direct, waiter = self.handle.direct, self._waiter
            waits = waiter is not None and not waiter.done() and delta.request is None and delta.error is None
            try:
                if direct is None or not waits or not direct(delta):
                    super().push(delta)
            except Exception as error:  # the other streams of the step go on
                self._error = error
                self._wake()
            self.began = True
        elif delta.request is not None:
            self.over, self.whole = True, delta.request

    def leave(self) -> None:
        """The reader has left; ``settle`` must be called later."""
        self._deltas.clear()
        self._left = self.handle.leave()

    def settle(self, output: RequestOutput | None = None) -> None:
        """Gives the handle the request's output so far: ``output`` from the worker, or else that of the last delta."""
        assert self._left is not None, "settle must follow leave"
        output = output or self.whole
        self._left.set_result(None if output is None else self.with_prompt(output))

    def with_prompt(self, output: RequestOutput) -> RequestOutput:
        """A worker's output with the prompt, which workers do not send back."""
        return replace(output, prompt_token_ids=self.request.token_ids)
