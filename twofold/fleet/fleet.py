"""A model on one or more replicas. Each request runs on one of them; if that one is lost, another continues it.

    state      means
    loading    no replica is ready, but one may become it: requests wait
    ready      a replica is ready
    failed     every replica has failed
    closed     ``close`` was called

A replica is lost when its process ends or stays silent. Readers keep the tokens that they have; another replica, or the
same one when it is back, sends the rest with the same bits (``fleet.resume``). Readers see a pause. They get an error
only if no replica is left, or if MAX_ENDS processes crashed with the same request before its next token
(``fleet.dispatch``).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, Literal

from twofold.api.base import ModelFacts
from twofold.backends.sampling.philox import derive_seed
from twofold.core.clock import MonotonicClock
from twofold.core.errors import ParameterError, ResourceError, TwofoldError, WorkerError
from twofold.core.forecast import Forecast
from twofold.core.params import SamplingParams
from twofold.core.report import EngineSnapshot
from twofold.core.request import EngineRequest
from twofold.engine.compress import ReadingTime
from twofold.engine.config import EngineOptions
from twofold.engine.kv.names import BlockKeys
from twofold.engine.scheduler.step_time import StepTimeModel
from twofold.fleet.checks import OutputBounds, check_lanes
from twofold.fleet.dispatch import Dispatch
from twofold.fleet.handover import Handovers
from twofold.fleet.joining import check_ready
from twofold.fleet.lifecycle import Lifecycle, unavailable
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import (
    BlockData,
    Blocks,
    BlocksFetched,
    BlocksGone,
    Failed,
    FromWorker,
    Gone,
    ListBlocks,
    LoadModel,
    Look,
    Pong,
    PullBlocks,
    Ready,
    Seen,
    StepOutputs,
    Watch,
    WorkReport,
)
from twofold.fleet.observer import EngineObserver
from twofold.fleet.placement import Cluster, Placement
from twofold.fleet.reading import ModelReading, model_identity, system_fingerprint
from twofold.fleet.relay import BlockRelay
from twofold.fleet.replica import FleetReplica, ReplicaState, RestartPolicy
from twofold.fleet.routing.index import PrefixIndex, windows_of
from twofold.fleet.routing.router import LeastLoaded, Predicted, Role, Router
from twofold.fleet.scale import ScaleDecision
from twofold.fleet.streams import RequestStream, StreamReader
from twofold.host.versions import NUMERICS, twofold_version
from twofold.observe.served import ServedRequest
from twofold.planner.predict.phase import local_steps
from twofold.planner.predict.steps import StepPredictor

FleetState = Literal["loading", "ready", "failed", "closed"]

log = logging.getLogger("twofold.serve")
AHEAD: Final = 4
"""Sequences of a request for each slot of the engines: embeddings take one step, and the next ones must be there."""
PLACES_S: Final = 0.25
"""Minimum seconds between two messages about places in the queue."""
ABSENT_S: Final = 30.0
"""How long requests wait for a node when the last one has left."""


class Fleet:
    """A model file on replicas, each a worker process.

    name       its name for observers and callers
    identity   digest of its file and options, on which completions depend besides the request
    reading    the model file without its weights
    options    ``EngineKeywords`` to load it with; nodes get ``node_options`` instead, if there are such
    error      why it failed
    routes     whether requests are routed to several replicas, by ``router``
    watched    whether its engine sends events of lanes
    ceilings   predicts steps on this machine; None until the machine was measured
    decision   the last one of the autoscaler; None without one
    """

    def __init__(
        self,
        name: str,
        reading: ModelReading,
        options: Mapping[str, Any],
        observers: Sequence[EngineObserver] = (),
        policy: RestartPolicy | None = None,
        *,
        replicas: int = 1,
        router: Router | None = None,
        node_options: Mapping[str, Any] | None = None,
        routes: bool | None = None,
        roles: Sequence[Role] = (),
        cluster: Cluster | None = None,
    ) -> None:
        """``router`` chooses between replicas; the default is by predicted TTFT. ``routes``: they report their work and
        their blocks, and requests wait here until one has room; None: if there are several. ``roles``: those of the
        first replicas; the others prefill and decode. ``cluster`` runs replicas, which join as nodes."""
        self.name = name
        self._reading = reading
        versions = {"version": twofold_version(), "numerics": NUMERICS}
        self.identity = model_identity(reading.parts, {**options, **versions})
        self._seed = options.get("seed", 0)
        self._observers = tuple(observers)
        self._clock = MonotonicClock()
        routes = replicas != 1 if routes is None else routes
        self.routes = routes
        self._keys = BlockKeys(secrets.token_bytes(32), bytes.fromhex(self.identity)) if routes else None
        self._load = LoadModel(str(reading.path), dict(options), keys=self._keys)
        self._policy = policy or RestartPolicy()
        self.replicas = {
            number: self._make(number, roles[number] if number < len(roles) else "both") for number in range(replicas)
        }
        self._starts = replicas
        node_options = dict(options if node_options is None else node_options)
        self._node_load = LoadModel("", node_options, shares_clock=False, keys=self._keys)
        self._node_options = EngineOptions(**node_options)
        self._absent: asyncio.TimerHandle | None = None
        self._abandoned = False
        self.router = router or (Predicted() if routes else LeastLoaded())
        self.requests = Dispatch(self.replicas, self.router, self._clock.now)
        self.relay = BlockRelay(self.replicas, self._clock.now)
        self.requests.line.fetch, self.requests.before_sending = self.relay.find, self.relay.begin
        self.handovers = Handovers(self.requests, self.replicas, self.relay, self._clock.now)
        placement = None if cluster is None else Placement(cluster, name, self.replicas)
        self.lifecycle = Lifecycle(
            name, self._load.options, self.replicas, self.requests, self.relay, self._make, self._forget, placement
        )
        self._numbers = count(2)
        self._places_at = 0.0
        self._closed = False
        self._ready: Ready | None = None
        self._facts: ModelFacts | None = None
        self.ceilings: StepPredictor | None = None
        self.error: TwofoldError | None = None
        self.failed_at = 0.0
        self.watched = False
        self.decision: ScaleDecision | None = None

    @property
    def state(self) -> FleetState:
        if self._closed:
            return "closed"
        states = self._states
        if "ready" in states:
            return "ready"
        return "failed" if states == {"failed"} or self.error is not None else "loading"

    @property
    def _states(self) -> set[ReplicaState]:
        """The states of the replicas, without nodes that failed, whose connections are about to end."""
        return {each.state for each in self.replicas.values() if each.node is None or each.state != "failed"}

    @property
    def facts(self) -> ModelFacts:
        assert self._facts is not None, "the model was never ready"
        return self._facts

    @property
    def ready(self) -> Ready:
        """The message that the first process sent when it had loaded the model."""
        assert self._ready is not None, "the model was never ready"
        return self._ready

    @property
    def queued(self) -> int:
        """An upper bound of waiting requests: those without a replica, sequences that waited before the last steps, and
        requests since then; but at most the number of requests without output."""
        waiting = self.requests.waiting + sum(replica.waiting for replica in self.replicas.values())
        return min(waiting, sum(not stream.began for stream in self.requests.streams.values()))

    @property
    def portion(self) -> int:
        """How many sequences of one request its replicas can use at once: those that run, and those that follow."""
        return AHEAD * self.slots

    @property
    def slots(self) -> int:
        """Sequences that run at once."""
        return (1 if self._ready is None else self._ready.engine.slots) * max(1, len(self.replicas))

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self.requests.streams)

    @property
    def snapshot(self) -> EngineSnapshot | None:
        """The last one of the first replica that has one."""
        return next((each.snapshot for each in self.replicas.values() if each.snapshot is not None), None)

    def reading_time(self) -> ReadingTime:
        """Predicts the seconds of prompts, by the step-time model of its engine at the last snapshot."""
        last, ready = self.snapshot, self._ready
        if last is None or ready is None or last.step_weights is None:
            return ReadingTime.unknown()
        model = StepTimeModel.of_weights(ready.engine.step_basis, last.step_weights)
        return ReadingTime(model, last.max_rows, last.max_logit_rows)

    def watch(self, *, on: bool) -> None:
        """Starts or ends the events of lanes, also of later processes."""
        self.watched = on
        self._send_watched(Watch(on))

    def look(self) -> None:
        """Asks the engine for a picture of its KV cache, which observers get."""
        self._send_watched(Look())

    @property
    def _shown(self) -> int:
        """The replica whose lanes and blocks live views show."""
        return min(self.replicas, default=0)

    def _send_watched(self, message: Watch | Look) -> None:
        replica = self.replicas.get(self._shown)
        if replica is not None and replica.state == "ready":
            replica.send(message)

    async def forecast(self, job: EngineRequest) -> Forecast:
        """What a request would meet if it arrived now. Nothing changes. Raises WorkerError without a replica."""
        choice = self.requests.line.choose(job)
        if choice is None:
            raise self._unavailable()
        ahead, wait_s = self.requests.line.before(job, choice.replica)
        found = await self.replicas[choice.replica].forecast(job)
        queue_s = None if found.queue_s is None else found.queue_s + wait_s
        queues_s = tuple(each + wait_s for each in found.queues_s)
        return replace(found, ahead=found.ahead + ahead, queue_s=queue_s, queues_s=queues_s)

    @property
    def own_bytes(self) -> int:
        """Memory of one replica of this machine; 0 until one was ready."""
        own = (each.ready for each in self.replicas.values() if each.node is None and each.ready is not None)
        return next((ready.bytes for ready in own), 0)

    async def start(self, absent_s: float | None = None) -> None:
        """Loads the model on all replicas. Without replicas of its own, waits ``absent_s`` seconds for a node; None:
        without limit. If all replicas fail, closes them and raises the error of the first."""
        own = [each for each in self.replicas.values() if each.node is None]
        for each in own:
            each.start()
        try:
            async with asyncio.timeout(None if own else absent_s):
                while any(each.state == "loading" for each in own) or (not own and self._ready is None):
                    self.lifecycle.changed.clear()
                    await self.lifecycle.changed.wait()
        except TimeoutError:
            await self.close()
            raise self.no_replica() from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if self.error is not None:
            await self.close()
            raise self.error

    async def close(self) -> None:
        """Ends the processes and all requests. Further calls do nothing."""
        self._closed = True
        self.lifecycle.changed.set()
        self.relay.close()
        if self._absent is not None:
            self._absent.cancel()
        replicas = list(self.replicas.values())
        await self.lifecycle.close()
        await asyncio.gather(*(each.close() for each in replicas))
        for each in replicas:
            self.requests.lose(each, "ended")
            self._forget(each)
        self.requests.fail_all(ResourceError(f"The model {self.name} was unloaded.", hint="Retry."))

    def join(self, node: NodeLink, role: Role = "both") -> None:
        """Takes a node as a further replica, for as long as its connection lasts."""
        self._abandoned = False
        number = next(number for number in count(self._starts) if number not in self.replicas)
        replica = self.replicas[number] = FleetReplica(
            self.name, number, self._node_load, self, self._policy, node, role
        )
        node.on_leave = partial(self.lifecycle.begin_leave, replica)
        replica.start()

    def _make(self, number: int, role: Role) -> FleetReplica:
        return FleetReplica(self.name, number, self._load, self, self._policy, role=role)

    def _forget(self, replica: FleetReplica) -> None:
        """Removes what is kept about a replica that has ended, and moves the live view to the next one."""
        if self.requests.line.prefixes is not None:
            self.requests.line.prefixes.leave(replica.number)
        for observer in self._observers:
            observer.on_leave(self.name, replica.number)
        if self.watched and replica.number < self._shown:
            self._send_watched(Watch(True))

    # -- requests ------------------------------------------------------------------------------------------------------

    def run(self, request: EngineRequest, reader: StreamReader | None = None) -> RequestStream:
        """Begins a request. Raises TwofoldError, as the stream does: BusyError if it waited too long, WorkerError if no
        replica is left."""
        if self.state in {"failed", "closed"}:
            raise self._unavailable()
        if self._abandoned:
            raise self.no_replica()
        return self.requests.open(self._seeded(request), reader)

    def _seeded(self, request: EngineRequest) -> EngineRequest:
        """The request with its arrival and a seed, so that every replica samples the same. The n-th request gets the
        seed that an engine, whose first request is its own, would give it."""
        number, params = next(self._numbers), request.params
        if isinstance(params, SamplingParams) and params.seed is None:
            params = replace(params, seed=derive_seed(self._seed, number))
        return replace(request, params=params, arrival=self._clock.now())

    def _unavailable(self) -> TwofoldError:
        return unavailable(self.name, self.error)

    def no_replica(self) -> TwofoldError:
        """The error of requests while no node has joined."""
        hint = "Retry when a node has joined (`twofold node MODEL --join HOST:PORT`)."
        return WorkerError(f"The model {self.name} has no replica: no node has joined for it.", hint=hint)

    # -- what replicas report ------------------------------------------------------------------------------------------

    def on_ready(self, replica: FleetReplica) -> None:
        ready = replica.ready
        assert ready is not None
        if replica.node is not None:
            options = self._node_options
            try:
                check_ready(ready, options, options.max_model_len or self._reading.spec.context_length)
            except ParameterError as error:
                replica.reject(error)
                return
            log.info("node %s of the model %s has joined", replica.node.name, self.name)
        if self._absent is not None:
            self._absent.cancel()
            self._absent = None
        self.error = None
        if self._ready is None:
            self._ready = ready
            self._facts = replace(
                self._reading.facts(ready.context),
                reading_time=self.reading_time,
                fingerprint=system_fingerprint(self._reading.parts, ready.kv_type),
            )
            spec, tokenizer = self._reading.spec, self._reading.tokenizer
            self.requests.bounds = OutputBounds(
                spec.vocab_size, ready.context, tokenizer.max_token_chars, spec.hidden_size
            )
            if ready.machine is not None:
                self.ceilings = local_steps(self._reading.spec, ready.machine, ready.kv_type)
            if self._keys is not None:
                self.requests.line.prefixes = PrefixIndex(
                    self._keys, ready.engine.block_size, windows_of(ready.engine)[1:]
                )
        if (prefixes := self.requests.line.prefixes) is not None:
            prefixes.join(replica.number, sum(group.blocks for group in ready.engine.groups))
            prefixes.report_all(replica.number, 0, ())
        self.lifecycle.changed.set()
        if self.watched and replica.number == self._shown:
            replica.send(Watch(True))
        self.requests.assign()

    def on_heard(self, replica: FleetReplica) -> None:  # noqa: ARG002 - any of them
        self.requests.assign()

    def on_beat(self) -> None:
        if self.requests.line.requests:
            self.requests.assign()
            if (now := self._clock.now()) - self._places_at >= PLACES_S:
                self._places_at = now
                self.requests.show_places()

    def on_silent(self, replica: FleetReplica) -> None:
        self.relay.lose(replica.number)
        self.requests.lose(replica, "silent")
        self.requests.assign()

    def on_end(self, replica: FleetReplica, error: WorkerError, *, served: bool, by_itself: bool) -> None:
        if self.requests.line.prefixes is not None:
            self.requests.line.prefixes.leave(replica.number)
        self.relay.lose(replica.number)
        self.requests.lose(replica, "crashed" if by_itself else "ended", error if by_itself else None)
        if replica.node is not None:
            self.replicas.pop(replica.number, None)
            self._forget(replica)
        states = self._states
        if states == {"failed"}:
            self._fail(next(each.error for each in self.replicas.values() if each.state == "failed"))
        elif not states and self._absent is None and not self._closed:
            self._absent = asyncio.get_running_loop().call_later(ABSENT_S, self._give_up)
        elif served:
            for observer in self._observers:
                observer.on_restart(self.name, replica.number)
        self.lifecycle.changed.set()
        self.requests.assign()

    def _give_up(self) -> None:
        self._absent, self._abandoned = None, True
        self.requests.fail_all(self.no_replica())

    def _fail(self, error: TwofoldError | None) -> None:
        """No replica will come back."""
        self.error, self.failed_at = error, time.monotonic()
        self.requests.fail_all(self._unavailable())

    def on_message(self, replica: FleetReplica, message: FromWorker) -> None:
        match message:
            case PullBlocks() | BlockData() | BlocksGone() | BlocksFetched():
                self.relay.hear(replica.number, message)
            case Failed(lease, error):
                self.requests.hear_failure(replica, lease, error)
            case Gone(lease, output):
                self.requests.hear_gone(replica, lease, output)
            case Seen(at, picture):
                for observer in self._observers:
                    observer.on_picture(self.name, at, picture)
            case Pong(snapshot):
                self._on_snapshot(replica, snapshot)
            case Blocks(event, names, first, more) if self.requests.line.prefixes is not None:
                fits = self.requests.line.prefixes.report_all(replica.number, event, names, more=first > 0)
                replica.listing = more or not fits

    def on_outputs(self, replica: FleetReplica, step: StepOutputs) -> None:
        now, number = self._clock.now(), replica.number
        if step.lanes and number == self._shown:
            check_lanes(step.lanes)
            for observer in self._observers:
                observer.on_lanes(self.name, step.lanes, partial(self._served, replica))
        for progress in step.progress:
            self.requests.hear_progress(replica, progress)
        for delta in step.deltas:
            self.requests.hear(replica, delta, now)
        for observer in self._observers:
            for report in step.reports:
                observer.on_step(self.name, report, number)
        if step.snapshot is not None:
            self._on_snapshot(replica, step.snapshot)
        if step.work is not None:
            self._hear_report(replica, step.work, now)

    def _hear_report(self, replica: FleetReplica, report: WorkReport, now: float) -> None:
        """Notes the work of a replica and which blocks it has; asks for all of them if an event is missing."""
        prefixes = self.requests.line.prefixes
        if replica.load is None or prefixes is None:
            return
        replica.load.report(report.received, report.work, now)
        if self.requests.line.requests:
            self.requests.assign()
        self._hear_blocks(replica, report, prefixes)
        self.handovers.review()

    def _hear_blocks(self, replica: FleetReplica, report: WorkReport, prefixes: PrefixIndex) -> None:
        if not (report.added or report.removed) or replica.listing:
            return
        if not prefixes.report(replica.number, report.event, report.added, report.removed):
            replica.listing = True
            replica.send(ListBlocks())

    def _served(self, replica: FleetReplica, lease: str) -> ServedRequest | None:
        stream = self.requests.stream_of(replica, lease)
        return None if stream is None else stream.reader.record

    def _on_snapshot(self, replica: FleetReplica, snapshot: EngineSnapshot | None) -> None:
        if snapshot is not None:
            for observer in self._observers:
                observer.on_snapshot(self.name, snapshot, replica.number)
