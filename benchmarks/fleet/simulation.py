"""A hub, its replicas and the network between them on a virtual clock, with faults at random: the real ``Dispatch``.

Every connection keeps the order of its messages, as TCP does, and delays each of them at random; a broken connection
loses what was under way, in both directions or, at worst, delivers it late, when the replica has another one. A
partition holds back what is sent until it ends. Replicas report their work and take requests only up to a bound, so
requests wait at the hub, and replicas without a queue help others. Replicas are killed and restarted, and hang for a
while. A few requests crash each process that begins them. The hub notices silence after 1.5 s, and the end of a
connection within 0.5 s.

The tokens of a request are a function of its seed, the completion and the position, as those of an engine are, so each
answer is known. The laws that are asserted:

    1. A reader gets each token once, in order, and the whole answer: nothing lost, doubled or changed.
    2. A lease's id is given to one replica, once.
    3. A reader gets an error only after MAX_ENDS processes have crashed with its request.
    4. When all readers have left, the hub and every connected replica hold nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final

from twofold.core.errors import WorkerError
from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest, RequestOptions
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from twofold.engine.scheduler.forecast import EngineWork, WorkAhead
from twofold.engine.scheduler.step_time import StepShape
from twofold.fleet.dispatch import Dispatch
from twofold.fleet.messages import Abort, SetPaused
from twofold.fleet.routing.load import ReplicaLoad, SentPrompt
from twofold.fleet.routing.router import Choice, Role, make_router
from twofold.fleet.streams import MAX_ENDS, RequestStream
from twofold.planner.simulate.setting import SIMULATED

SILENT_S: Final = 1.5
CHECK_S: Final = 0.25
BEAT_S: Final = 0.25
STEP_S: Final = 0.05
ROWS: Final = 16
"""Rows of a step, at most."""
ROUTERS: Final = ("predicted", "least-loaded", "round-robin", "longest-match")
CRASHES: Final = 7
"""Maximum number of tokens of a request that crashes processes, and of no other."""
CRASH_SHARE: Final = 0.02
"""Share of such requests."""
ROLES: Final = ("both", "both", "prefill", "decode")
MOVE_SHARE: Final = 0.2
"""Share of first tokens after which a request may move to another replica."""
END_S: Final = 120.0
"""Virtual seconds within which everything must have ended, once there are no more faults."""


def token_of(seed: int, index: int, position: int) -> int:
    """The token that every engine samples here."""
    return zlib.crc32(f"{seed} {index} {position}".encode()) % 1000


def _crashes(request: EngineRequest) -> bool:
    """Whether a request crashes the process that begins it."""
    return isinstance(request.params, SamplingParams) and request.params.max_tokens == CRASHES


def length_of(seed: int, index: int, most: int) -> int:
    """The number of tokens of a completion."""
    return 1 + zlib.crc32(f"{seed} {index}".encode()) % most


def answer_of(request: EngineRequest) -> list[tuple[int, ...]]:
    """The tokens of each completion."""
    params = request.params
    assert isinstance(params, SamplingParams)
    assert params.seed is not None
    assert params.max_tokens is not None
    return _answer(params.seed, params.n, params.max_tokens)


@lru_cache
def _answer(seed: int, completions: int, most: int) -> list[tuple[int, ...]]:
    lengths = [length_of(seed, index, most) for index in range(completions)]
    return [tuple(token_of(seed, index, at) for at in range(end)) for index, end in enumerate(lengths)]


class World:
    """A virtual clock and what is due."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.chance = chance
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), call))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = until


class Connection:
    """Two ordered streams of messages. ``up`` delivers to the hub, ``down`` to the process."""

    def __init__(self, world: World, hub: Callable[[Any], None], process: Callable[[Any], None]) -> None:
        self._world = world
        self._ends = {"up": hub, "down": process}
        self._last = {"up": 0.0, "down": 0.0}
        self.open = True
        self.ghosts = False
        self.cut_until = 0.0

    def send(self, way: str, message: object) -> None:
        world = self._world
        at = max(world.now, self.cut_until) + world.chance.expovariate(1 / 0.01)
        self._last[way] = at = max(self._last[way] + 1e-9, at)
        world.after(at - world.now, lambda: self._arrive(way, at, message))

    def _arrive(self, way: str, at: float, message: object) -> None:
        if at < self.cut_until:  # the partition began while it was under way
            self._world.after(self.cut_until - at, lambda: self._arrive(way, self.cut_until, message))
        elif self.open or (self.ghosts and way == "up"):
            self._ends[way](message)


@dataclass(slots=True)
class Job:
    """A request in a process: its prompt rows to compute, and what it has sampled of each completion."""

    request: EngineRequest
    left: int
    tokens: list[list[int]]
    ended: list[bool]
    paused: bool = False


class Process:
    """A worker: it samples tokens in steps, and sends them, its work and heartbeats to the hub."""

    def __init__(self, world: World, slots: int) -> None:
        self.world = world
        self.slots = slots
        self.received = 0
        self.alive = True
        self.hung_until = 0.0
        self.jobs: dict[str, Job] = {}
        self.inbox: deque[Any] = deque()
        self.connection: Connection | None = None
        self.crash: Callable[[], None] = lambda: None
        self._stepping = False
        world.after(0.0, self._beat)

    def receive(self, message: object) -> None:
        self.inbox.append(message)
        self._go_on()

    def _go_on(self) -> None:
        """Takes a step soon, if there is work and none is due."""
        if (self.jobs or self.inbox) and not self._stepping:
            self._stepping = True
            soon = STEP_S * self.world.chance.uniform(0.5, 1.5)
            self.world.after(max(soon, self.hung_until - self.world.now), self._step)

    def _beat(self) -> None:
        if self.alive:
            if self.world.now >= self.hung_until:
                self._tell("beat")
            self.world.after(BEAT_S, self._beat)

    def _tell(self, message: object) -> None:
        if self.connection is not None:
            self.connection.send("up", message)

    def _step(self) -> None:
        self._stepping = False
        if not self.alive:
            return
        if self.world.now >= self.hung_until:
            while self.inbox:
                self._take(self.inbox.popleft())
            if any(_crashes(job.request) for job in self.jobs.values()):
                self.crash()
                return
            running = [lease for lease, job in self.jobs.items() if not job.paused][: self.slots]
            rows = ROWS
            for job in (self.jobs[lease] for lease in running):
                part = min(rows, job.left)
                job.left, rows = job.left - part, rows - part
            deltas = [delta for lease in running for delta in self._advance(lease)]
            self._tell((deltas, self.received, self._work(running)))
        self._go_on()

    def _work(self, running: list[str]) -> EngineWork:
        """As ``QueueAhead.work``."""
        decode, pending = StepShape(), StepShape()
        for job in self.jobs.values():
            if job.left:
                pending = pending.plus(0, job.left, 1)
        here = [lease for lease in running if lease in self.jobs]
        for _ in (lease for lease in here if not self.jobs[lease].left):
            decode = decode.plus(0, 1, 1)
        waiting = sum(not job.paused for job in self.jobs.values()) - len(here)
        return EngineWork(decode, pending, max(1, ROWS - decode.rows), len(here), waiting)

    def _take(self, message: object) -> None:
        match message:
            case EngineRequest():
                self.received += 1
                delivered = [list(each.token_ids) for each in message.delivered] or [
                    [] for _ in range(message.completions)
                ]
                ended = [each.finish_reason is not None for each in message.delivered] or [False] * message.completions
                left = len(message.token_ids) + sum(map(len, delivered))
                self.jobs[message.request_id] = Job(message, left, delivered, ended)
            case Abort(lease):
                self.jobs.pop(lease, None)
                self._tell(lease)
            case SetPaused(lease, paused):
                if lease in self.jobs:
                    self.jobs[lease].paused = paused

    def _advance(self, lease: str) -> list[OutputDelta]:
        """One step of a request."""
        job, chance = self.jobs[lease], self.world.chance
        if job.left:
            return []
        deltas = []
        for index, whole in enumerate(answer_of(job.request)):
            if job.ended[index] or chance.random() < 0.2:
                continue
            fresh = whole[len(job.tokens[index]) :][: chance.choice((1, 1, 1, 3))]
            job.tokens[index] += fresh
            job.ended[index] = len(job.tokens[index]) == len(whole)
            finish: FinishReason | None = "length" if job.ended[index] else None
            deltas.append(OutputDelta(lease, index, _text(fresh), fresh, finish_reason=finish))
        if all(job.ended):
            del self.jobs[lease]
            deltas[-1] = replace(deltas[-1], request=_output(job))
        return deltas


def _text(tokens: tuple[int, ...] | list[int]) -> str:
    return "".join(f"{token} " for token in tokens)


def _output(job: Job) -> RequestOutput:
    """The whole output, as an engine gives it: completions that have ended elsewhere are empty."""
    delivered = job.request.delivered or [None] * len(job.tokens)
    known = [
        [] if before is not None and before.finish_reason is not None else tokens
        for before, tokens in zip(delivered, job.tokens, strict=True)
    ]
    outputs = tuple(CompletionOutput(i, _text(t), tuple(t), None, None, "length", None) for i, t in enumerate(known))
    begun = [0 if before is None else len(before.token_ids) for before in delivered]
    times = tuple((1.0,) * (len(tokens) - start) for tokens, start in zip(job.tokens, begun, strict=True))
    reasons: tuple[FinishReason, ...] = tuple("length" for _ in known)
    prompt = len(job.request.token_ids)
    metrics = RequestMetrics(0.0, 0.5, 1.0, 2.0, times, prompt, finish_reasons=reasons)
    return RequestOutput(job.request.request_id, None, (), None, outputs, metrics, finished=True)


@dataclass(slots=True)
class SimulatedReplica:
    """What the hub knows of a replica: the connection to its process, its load, and how long it was silent."""

    number: int
    hub: Hub
    slots: int
    load: ReplicaLoad
    role: Role
    requests: int = 0
    waiting: int = 0
    state: str = "down"
    quiet: int = 0
    process: Process | None = None
    connection: Connection | None = None

    @property
    def usable(self) -> bool:
        return self.state == "ready"

    def takes(self, tenant: str) -> bool:
        return self.load.takes(tenant)

    def ahead(self, now: float) -> WorkAhead:
        return self.load.ahead(now)

    def open_request(self, prompt: SentPrompt, tenant: str) -> None:
        self.requests += 1
        self.load.send(prompt, self.hub.world.now)
        self.load.tenants[tenant] += 1

    def close_request(self, tenant: str) -> None:
        self.requests -= 1
        self.load.tenants[tenant] -= 1

    def clear(self) -> None:
        self.requests = 0
        self.load.tenants.clear()

    def send(self, message: Any) -> None:
        if isinstance(message, EngineRequest):
            assert message.request_id not in self.hub.leased, "law 2: a lease was given twice"
            self.hub.leased.add(message.request_id)
        if self.connection is not None:
            self.connection.send("down", message)

    def start(self) -> None:
        """A new process, with a connection of its own."""
        process = self.process = Process(self.hub.world, self.slots)
        self.load = ReplicaLoad(self.slots, ROWS, SIMULATED)
        connection = Connection(self.hub.world, lambda message: self.hear(connection, message), process.receive)
        process.connection = self.connection = connection
        process.crash = lambda: self.end(connection, process, crashed=True)
        self.state, self.quiet = "ready", 0
        self.hub.requests.assign()

    def hear(self, connection: Connection, message: Any) -> None:
        """A message of a process; one of an earlier connection is late, and taken as if it were of this one."""
        if connection is self.connection:
            self.quiet = 0
            if self.state == "silent":
                self.state = "ready"
                self.hub.requests.assign()
        if isinstance(message, tuple):
            deltas, received, work = message
            for delta in deltas:
                self.hub.requests.hear(self, delta, self.hub.world.now)
            if connection is self.connection:
                self.load.report(received, work, self.hub.world.now)
                self.hub.requests.assign()
        elif message != "beat":
            self.hub.requests.hear_gone(self, message, None)

    def check(self) -> None:
        """Counts silence, as ``FleetReplica`` does."""
        self.quiet += 1
        if self.state == "ready" and self.quiet * CHECK_S > SILENT_S:
            self.state = "silent"
            self.hub.requests.lose(self, "silent")
            self.hub.requests.assign()

    def break_connection(self, *, kill: bool) -> None:
        """The connection ends, with its process or without."""
        connection, process = self.connection, self.process
        if connection is None or process is None or not connection.open:
            return
        if kill:
            self.end(connection, process)
        else:  # the node ends its process when it notices
            self.end(connection)
            self.hub.world.after(self.hub.world.chance.uniform(0.0, 10.0), lambda: setattr(process, "alive", False))

    def end(self, connection: Connection, process: Process | None = None, *, crashed: bool = False) -> None:
        """A connection ends, with its process if given; the hub hears of it later, and whether the process crashed."""
        chance = self.hub.world.chance
        connection.open, connection.ghosts = False, chance.random() < 0.5
        if process is not None:
            process.alive = False
        self.hub.world.after(chance.uniform(0.0, 0.5), lambda: self._ended(connection, crashed=crashed))

    def _ended(self, connection: Connection, *, crashed: bool) -> None:
        if self.connection is connection:
            self.connection, self.state = None, "down"
            self.hub.requests.lose(
                self, "crashed" if crashed else "ended", WorkerError("It crashed.") if crashed else None
            )
            self.hub.requests.assign()
            self.hub.world.after(self.hub.world.chance.uniform(0.1, 2.0), self.start)


class Hub:
    """The hub's process: the real dispatch, with simulated replicas."""

    def __init__(self, world: World, replicas: int, slots: int, router: str) -> None:
        self.world = world
        self.leased: set[str] = set()
        self.moves = 0
        self.replicas = {
            number: SimulatedReplica(
                number, self, slots, ReplicaLoad(slots, ROWS, SIMULATED), world.chance.choice(ROLES)
            )
            for number in range(replicas)
        }
        self.requests: Dispatch[SimulatedReplica] = Dispatch(self.replicas, make_router(router), lambda: world.now)
        self.requests.on_first = self._on_first
        world.after(CHECK_S, self._check)
        for each in self.replicas.values():
            each.start()

    @property
    def idle(self) -> bool:
        """Whether every replica is back, no process has a request, and no end of one is under way."""
        if self.requests.leaving:
            return False
        processes = [each.process for each in self.replicas.values() if each.state == "ready"]
        return len(processes) == len(self.replicas) and not any(p is None or p.jobs or p.inbox for p in processes)

    def _on_first(self, request_id: str) -> None:
        """A request may move soon, as if its blocks had been transferred."""
        holder, chance = self.requests.leases.holder(request_id), self.world.chance
        if chance.random() < MOVE_SHARE:
            self.world.after(chance.uniform(0.0, 1.0), lambda: self._move(request_id, holder))

    def _move(self, request_id: str, holder: tuple[str, int] | None) -> None:
        if holder is None or self.requests.leases.holder(request_id) != holder:
            return
        targets = [number for number, each in self.replicas.items() if each.usable and number != holder[1]]
        if targets:
            self.moves += 1
            self.requests.move(request_id, Choice(self.world.chance.choice(targets), "it moves"))

    def _check(self) -> None:
        for each in self.replicas.values():
            each.check()
        self.world.after(CHECK_S, self._check)


class Reader:
    """A client: reads its stream now and then, and may leave early."""

    def __init__(self, hub: Hub, number: int) -> None:
        chance = hub.world.chance
        most = CRASHES if chance.random() < CRASH_SHARE else chance.choice((3, 12, 40))
        params = SamplingParams(seed=number, max_tokens=most, n=chance.choice((1, 1, 2, 3)))
        options = RequestOptions(priority=chance.choice((0, 0, 1)), tenant=chance.choice("ab"))
        prompt = (1,) * chance.choice((1, 5, 20, 60))
        self.request = EngineRequest(
            prompt, params, options, request_id=f"r{number}", stream=chance.random() < 0.8, arrival=hub.world.now
        )
        self.hub = hub
        self.leaves = chance.random() < 0.1
        self.got: list[list[int]] = [[] for _ in range(params.n)]
        self.done = False
        self.failed = self.blamed = False
        self.stream: RequestStream = hub.requests.open(self.request)
        self._read()

    def _read(self) -> None:
        stream, chance = self.stream, self.hub.world.chance
        while stream._deltas and not self.done:
            delta, size = stream._deltas.popleft()
            stream._bytes -= size
            self.got[delta.index] += delta.token_ids
            if delta.request is not None:
                self._end(delta.request)
        if not self.done and stream._error is not None:
            assert stream.ends == MAX_ENDS, f"law 3: {stream._error}"
            self.done = self.failed = True
            self.blamed = not _crashes(self.request)
            self.hub.requests.close(stream, whole=False)
        if not self.done and self.leaves and chance.random() < 0.05:
            self.done = True
            self.hub.requests.close(stream, whole=False)
        if not self.done:
            self.hub.world.after(chance.uniform(0.01, 0.4), self._read)

    def _end(self, output: RequestOutput) -> None:
        self.done = True
        self.hub.requests.close(self.stream, whole=True)
        expected = answer_of(self.request)
        assert [each.token_ids for each in output.outputs] == expected, "law 1: the output differs"
        assert [each.text for each in output.outputs] == [_text(tokens) for tokens in expected], "law 1: its text"
        assert output.metrics.output_tokens == sum(map(len, expected)), "law 1: its usage"
        if self.request.stream:
            assert [tuple(tokens) for tokens in self.got] == expected, "law 1: the stream differs"


def simulate(seed: int) -> dict[str, int]:
    """One random schedule; returns counts: requests, faults, tries, requests that got an error (``failed``), and those
    of them that crash nothing (``blamed``): a process that hung still had a request that does. Raises AssertionError
    where a law is broken."""

    async def schedule() -> dict[str, int]:  # streams need an event loop; nothing waits on it
        chance = random.Random(seed)
        world = World(chance)
        hub = Hub(world, chance.randint(1, 4), slots=chance.choice((1, 2, 8)), router=chance.choice(ROUTERS))
        readers: list[Reader] = []
        counts = {"requests": chance.randint(1, 12), "faults": 0, "failed": 0, "blamed": 0, "tries": 0, "moves": 0}
        for number in range(counts["requests"]):
            world.after(chance.uniform(0.0, 6.0), lambda number=number: readers.append(Reader(hub, number)))  # type: ignore[misc]
        for _ in range(chance.randint(0, 10)):
            counts["faults"] += 1
            world.after(chance.uniform(0.0, 8.0), lambda: _fault(hub))
        world.run(8.0)
        while not (all(reader.done for reader in readers) and hub.idle) and world.now < END_S:
            world.run(world.now + 0.5)
        assert len(readers) == counts["requests"]
        assert all(reader.done for reader in readers), "a request never ended"
        assert not hub.requests.streams, "law 4: the hub still has a stream"
        hub.requests.check_idle()
        for replica in hub.replicas.values():
            assert replica.usable, "a replica never came back"
            assert not +replica.load.tenants, "law 4: a tenant is counted at a replica"
            assert replica.process is not None
            assert not replica.process.jobs, "law 4: a process holds a request"
        counts["failed"] = sum(reader.failed for reader in readers)
        counts["blamed"] = sum(reader.blamed for reader in readers)
        counts["tries"], counts["moves"] = len(hub.leased), hub.moves
        return counts

    return asyncio.run(schedule())


def _fault(hub: Hub) -> None:
    """A kill, a hang, a partition or a broken connection of a random replica."""
    world = hub.world
    chance = world.chance
    replica = chance.choice(list(hub.replicas.values()))
    match chance.choice(("kill", "hang", "partition", "break")):
        case "kill" | "break" as kind:
            replica.break_connection(kill=kind == "kill")
        case "hang" if replica.process is not None:
            replica.process.hung_until = world.now + chance.uniform(0.1, 6.0)
        case "partition" if replica.connection is not None:
            # A shorter partition must not let later messages overtake those that a longer one holds back.
            connection = replica.connection
            connection.cut_until = max(connection.cut_until, world.now + chance.uniform(0.1, 6.0))
