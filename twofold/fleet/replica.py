"""One replica of a model: a worker process, which is started again when it ends, or a node's, which joins again.

    state      may become      when
    loading    ready           the model is loaded
               failed          it cannot be loaded, or its process ended too often
    ready      silent          nothing was heard from its process for ``silent_s``
               loading         its process ended
               failed          its process ended too often
    silent     ready           its process was heard again
               loading         its process ended, or was killed because it stayed silent
    any        closed          ``close`` is called, or a node's connection ended

A replica that is drained gets no requests any more: it is closed then, or its process is replaced by another one.
If processes end in quick succession without an output, the pause before the next start doubles, and finally the replica
fails. What becomes of the requests that it had is decided by its owner, the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, Protocol

from twofold.core.clock import MonotonicClock
from twofold.core.errors import TwofoldError, WorkerError
from twofold.core.forecast import Forecast
from twofold.core.report import EngineSnapshot
from twofold.core.request import EngineRequest
from twofold.core.step_basis import PLAIN
from twofold.core.tasks import start_task
from twofold.engine.engine import SAVE_S
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.link import END_S, Link, NodeLink, WorkerEnd, WorkerLink
from twofold.fleet.messages import (
    Beat,
    Foresee,
    Foreseen,
    FromWorker,
    LoadModel,
    Ping,
    Pong,
    Ready,
    StepOutputs,
    ToWorker,
    Unloadable,
)
from twofold.fleet.routing.load import ReplicaLoad, SentPrompt
from twofold.fleet.routing.router import Role

ReplicaState = Literal["loading", "ready", "silent", "failed", "closed"]

log = logging.getLogger("twofold.serve")
IDLE: Final = WorkAhead(StepShape(), StepShape(), 1, StepTimeModel(PLAIN))
"""The work of a replica that does not report its own."""
CHECK_S: Final = 0.25
"""Interval at which a replica's silence is checked."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a worker process counts as hung, and how often it is restarted. Times are in seconds.

    silent_s    time without a message, after which the requests of a loaded worker go on elsewhere
    dead_s      time without a message, after which the process of a loaded worker is killed
    ping_s      interval of pings, to which the engine responds between steps
    idle_s      time without a response after which an idle process is killed
    busy_s      the same for a process with requests: it is longer, because a step of a large model takes long
    ends        number of ends within ``ends_within_s`` after which the process is not restarted; those before the last
                output, and kills from outside, do not count
    pause_s     pause before the second restart in that time; it doubles with each further one
    """

    silent_s: float = 1.5
    dead_s: float = 15.0
    ping_s: float = 5.0
    idle_s: float = 30.0
    busy_s: float = 300.0
    ends: int = 5
    ends_within_s: float = 60.0
    pause_s: float = 0.25


class ReplicaOwner(Protocol):
    """What a replica reports to its owner, on the event loop."""

    def on_ready(self, replica: FleetReplica) -> None:
        """The model is loaded."""

    def on_outputs(self, replica: FleetReplica, step: StepOutputs) -> None:
        """Outputs of a step."""

    def on_message(self, replica: FleetReplica, message: FromWorker) -> None:
        """Another message about requests or the engine."""

    def on_beat(self) -> None:
        """Some replica runs; called a few times a second."""

    def on_silent(self, replica: FleetReplica) -> None:
        """Nothing was heard from it for a while; it may hang, or its requests may go on later."""

    def on_heard(self, replica: FleetReplica) -> None:
        """It was silent, and is not any more."""

    def on_end(self, replica: FleetReplica, error: WorkerError, *, served: bool, by_itself: bool) -> None:
        """Its process ended; ``served``: after it had loaded the model; ``by_itself``: its requests may be the reason.
        Its state is loading, failed or closed."""


class FleetReplica:
    """The ``number``-th replica of a model. With a ``node`` it is the one behind that connection, as long as it lasts.

    error     why it failed
    ready     the message that its process sent when it had loaded the model; None before
    snapshot  the last one of its engine
    waiting   sequences that waited before its last step, and requests since then
    requests  number of requests that the owner has given it
    step_s    seconds of its last step; None before
    load      its work, if its process reports that; None before it is loaded
    listing   whether it was asked for the names of all its blocks
    draining  whether it gets no requests any more, until its process is replaced
    restarts  number of unexpected ends of its process
    role      what it is for
    """

    def __init__(
        self,
        name: str,
        number: int,
        load: LoadModel,
        owner: ReplicaOwner,
        policy: RestartPolicy,
        node: NodeLink | None = None,
        role: Role = "both",
    ) -> None:
        self.name = name
        self.role: Role = role
        self.number = number
        self.state: ReplicaState = "loading"
        self.error: TwofoldError | None = None
        self.failed_at = 0.0
        self.ready: Ready | None = None
        self.snapshot: EngineSnapshot | None = None
        self.waiting = 0
        self.requests = 0
        self.step_s: float | None = None
        self.load: ReplicaLoad | None = None
        self.listing = False
        self.draining = False
        self.restarts = 0
        self.node = node
        self._clock = MonotonicClock()
        self._load = load
        self._owner = owner
        self._policy = policy
        self._exits: deque[float] = deque()
        self._numbers = count()
        self._forecasts: dict[int, asyncio.Future[Forecast]] = {}
        self._link: Link | None = None
        self._unanswered = 0
        self._quiet = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return None if self._link is None else self._link.pid

    @property
    def slot(self) -> int | None:
        """Its number on the server's cluster; None if no cluster runs it for this server."""
        return None if self.node is None else self.node.slot

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it."""
        return self.state == "ready" and not self.draining

    def takes(self, tenant: str) -> bool:
        """Whether a request of the tenant may be sent to it now."""
        return self.load is None or self.load.takes(tenant)

    def ahead(self, now: float) -> WorkAhead:
        """The work before a request that is sent to it now."""
        return IDLE if self.load is None else self.load.ahead(now)

    def prompt_share(self, now: float) -> float:
        """The share of its time that prompts take, lately."""
        return 0.0 if self.load is None else self.load.prompt_share(now)

    def open_request(self, prompt: SentPrompt, tenant: str) -> None:
        """A request of the tenant is sent to it."""
        self.requests += 1
        self.waiting += 1
        if self.load is not None:
            self.load.send(prompt, self._clock.now())
            self.load.tenants[tenant] += 1

    def close_request(self, tenant: str) -> None:
        """It need not work on a request of the tenant any more."""
        self.requests -= 1
        if self.load is not None:
            self.load.tenants[tenant] -= 1
            if not self.load.tenants[tenant]:
                del self.load.tenants[tenant]

    def clear(self) -> None:
        """All its requests went elsewhere."""
        self.requests = 0
        if self.load is not None:
            self.load.tenants.clear()

    def start(self) -> None:
        """Begins to load the model."""
        self._task = start_task(self._run_processes(), f"replica {self.number} of {self.name}")

    async def close(self) -> None:
        """Ends the process. Further calls do nothing."""
        self.state = "closed"
        life, self._task = self._task, None
        if life is not None:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life

    async def replace(self) -> None:
        """Ends the process of a drained replica; another one is started."""
        if self._link is not None:
            await self._link.close(self._end_s)

    async def leave(self) -> None:
        """Ends the connection of a drained node, which does not join again."""
        assert self.node is not None
        self.node.dismiss()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=END_S)
            self.node.kill()
            await asyncio.wait([self._task])

    def send(self, message: ToWorker | EngineRequest) -> None:
        """Sends a message; does nothing without a process."""
        if self._link is not None:
            self._link.send(message)

    async def forecast(self, job: EngineRequest) -> Forecast:
        """What a request would meet if it arrived now. Nothing changes. Raises WorkerError without a process."""
        number, found = next(self._numbers), asyncio.get_running_loop().create_future()
        self._forecasts[number] = found
        try:
            self.send(Foresee(number, job.token_ids, job.options))
            forecast: Forecast = await found
            return forecast
        finally:
            del self._forecasts[number]

    async def _run_processes(self) -> None:
        """Starts one process after the other; if they end quickly, pauses before the third and further ones."""
        try:
            while self.state == "loading":
                recent = len(self._exits)
                if recent > 1:
                    await asyncio.sleep(self._policy.pause_s * 2 ** (recent - 2))
                await self._run_process()
                if self.node is not None:
                    return
        except Exception as error:
            if not isinstance(error, TwofoldError):
                log.exception("replica %d of the model %s failed", self.number, self.name)
                error = WorkerError(f"The server failed with a {type(error).__name__}.")
            self._fail(error)
            self._owner.on_end(self, WorkerError(str(error)), served=False, by_itself=True)

    async def _run_process(self) -> None:
        """Starts a process and waits until it ends."""
        link: Link = await (WorkerLink.open if self.node is None else self.node.open)(self._on_message)
        self._link, self._unanswered, self._quiet = link, 0, 0
        watching = [
            start_task(work, f"watch over replica {self.number} of {self.name}", lambda _: link.kill())
            for work in (self._ping(link), self._watch_silence(link))
        ]
        try:
            link.send(self._load)
            await link.ended.wait()
        finally:
            for task in watching:
                task.cancel()
            self._link = None
            self._on_exit(await asyncio.shield(asyncio.ensure_future(link.close(self._end_s))))

    @property
    def _end_s(self) -> float:
        """Seconds that a process gets to end."""
        return END_S if self._load.options.get("kv_store") is None else SAVE_S + END_S

    def _on_exit(self, end: WorkerEnd) -> None:
        """Handles the end of the process."""
        self.waiting = 0
        self.snapshot = self.load = self.step_s = None
        error = WorkerError(
            f"The process of the model {self.name} exited ({end.cause}).",
            hint="Retry; the process is being restarted.",
        )
        for asked in self._forecasts.values():
            if not asked.done():
                asked.set_exception(error)
        if self.state == "closed":
            return
        if self.state == "failed":
            self._owner.on_end(self, error, served=False, by_itself=end.by_itself)
            return
        served = self.state != "loading"
        if self.node is not None:
            log.warning("node %s of the model %s has left", self.node.name, self.name)
            self.state = "closed"
            self._owner.on_end(self, error, served=False, by_itself=end.by_itself)
            return
        if self.draining:
            self.state, self.draining = "loading", False
            self._owner.on_end(self, error, served=False, by_itself=False)
            return
        now = time.monotonic()
        self.restarts += 1
        if end.by_itself:
            self._exits.append(now)
        while self._exits and now - self._exits[0] > self._policy.ends_within_s:
            self._exits.popleft()
        if self.ready is None or len(self._exits) >= self._policy.ends:
            self._fail(error)
        else:
            self.state = "loading"
            log.warning("the process of the model %s exited (%s); it is restarted", self.name, end.cause)
        self._owner.on_end(self, error, served=served, by_itself=end.by_itself)

    def reject(self, error: TwofoldError) -> None:
        """Ends a node's connection: its engine is not like the others."""
        self._fail(error)
        assert self.node is not None
        self.node.refuse(error)

    def _fail(self, error: TwofoldError) -> None:
        """Makes the replica unusable."""
        self.error, self.failed_at = error, time.monotonic()
        self.state = "failed"
        if self.node is not None:
            log.warning("node %s of the model %s cannot be used: %s", self.node.name, self.name, error)

    async def _ping(self, link: Link) -> None:
        """Pings the engine, and kills the process if it does not respond."""
        policy = self._policy
        while True:
            await asyncio.sleep(policy.ping_s)
            limit = policy.busy_s if self.requests or self.state == "loading" else policy.idle_s
            if self._unanswered * policy.ping_s >= limit:
                link.kill()
            self._unanswered += 1
            link.send(Ping())

    async def _watch_silence(self, link: Link) -> None:
        """Counts checks without a message. What arrived while this process itself was busy is read before the next
        check, so a pause of this process does not count as silence of the other."""
        policy = self._policy
        while True:
            await asyncio.sleep(CHECK_S)
            self._quiet = 0 if link.busy else self._quiet + 1
            if self.state == "ready" and self._quiet * CHECK_S > policy.silent_s:
                self.state = "silent"
                log.warning("replica %d of the model %s does not answer", self.number, self.name)
                self._owner.on_silent(self)
            elif self._quiet * CHECK_S > policy.dead_s and (self.state == "silent" or self.node is not None):
                link.kill()

    def _on_message(self, message: FromWorker) -> None:
        self._quiet = 0
        if self.state == "silent":
            self.state = "ready"
            self._owner.on_heard(self)
        match message:
            case Beat():
                self._owner.on_beat()
                return
            case Foreseen(number, forecast):
                if (asked := self._forecasts.get(number)) is not None and not asked.done():
                    asked.set_result(forecast)
            case Ready():
                self._take_ready(message)
            case Unloadable(error):
                self._fail(error)
            case StepOutputs():
                if message.reports:
                    self.waiting, self.step_s = message.reports[-1].waiting, message.reports[-1].seconds
                if message.snapshot is not None:
                    self._take_snapshot(message.snapshot)
                if message.deltas:
                    self._exits.clear()
                self._unanswered = 0
                self._owner.on_outputs(self, message)
                return
            case Pong(snapshot):
                self._take_snapshot(snapshot)
            case _:
                pass
        self._unanswered = 0
        self._owner.on_message(self, message)

    def _take_ready(self, ready: Ready) -> None:
        self.ready, self.state = ready, "ready"
        if self._load.keys is not None:
            facts = ready.engine
            self.load, self.listing = ReplicaLoad(facts.slots, facts.rows, facts.step_basis), False
        self._owner.on_ready(self)

    def _take_snapshot(self, snapshot: EngineSnapshot | None) -> None:
        if snapshot is not None:
            self.snapshot, self.waiting = snapshot, snapshot.waiting
            if self.load is not None:
                self.load.learn(snapshot.step_weights)
