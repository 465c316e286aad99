"""The client sends a load to a server and records every request, in an event loop. One iteration:

    1  wait until bytes arrive or a request is due; if there is time, prepare a request
    2  read every readable socket, with the kernel's timestamps
    3  start the requests that are due
    4  parse what was read, and start the requests that follow ended ones
    5  ten times a second: timeouts, the clock, the watcher

Sockets are read before anything is parsed, and requests are sent before that, since parsing can wait. Requests are
ordered by due time, and encoded ahead of time while the client is idle, so that sending is quick:

    known from the start (made as they are taken) ┐
                                                  ├→ heap by due time → taken when due, if one more may be open
    following an ended request                    ┘
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import math
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from twofold.bench.client.connection import Connection, Readiness, Stamps
from twofold.bench.client.response import Flight
from twofold.bench.client.target import JSON, Address, ServerTarget, head, lowered, network_error, reachable
from twofold.bench.endpoints.endpoint import ApiEndpoint
from twofold.bench.load.base import Ask, Load
from twofold.bench.record import Client, RequestSample, RunRecord
from twofold.core.errors import ParameterError, ResourceError

LOOK_AHEAD: Final = 31
"""Maximum number of requests that are prepared: five levels of the heap."""
AHEAD_S: Final = 2.0
"""Requests are encoded at most this long before they are due."""

IN: Final = select.POLLIN
OUT: Final = select.POLLOUT
"""Event masks, equal in poll and epoll."""

TICK_S: Final = 0.1
LATE_S: Final = 0.005
LONGEST_SILENCE_S: Final = 1.0
MAX_STARTS: Final = 16
SPARE_FILES: Final = 64


def request_writer(target: ServerTarget, endpoint: ApiEndpoint) -> Callable[[Ask], bytes]:
    """A function that makes the bytes of requests. The head is made once, except for the content length."""
    start = head(target, "POST", endpoint.path, JSON | lowered(endpoint.headers)) + b"\r\ncontent-length: "

    def write(ask: Ask) -> bytes:
        body = endpoint.body(ask)
        return b"%b%d\r\n\r\n%b" % (start, len(body), body)

    return write


@dataclass(slots=True, order=True)
class ScheduledRequest:
    """A request to send. ``count`` orders equal due times; ``data`` is None until the request is encoded; ``known``
    requests do not follow an ended one."""

    due_s: float
    count: int
    ask: Ask = field(compare=False)
    data: bytes | None = field(default=None, compare=False)
    known: bool = field(default=True, compare=False)


class RequestSchedule:
    """Requests that are not started yet. Invariant: the heap has the earliest one, since loads make them in order."""

    def __init__(self, asks: Iterator[Ask], prepare: Callable[[Ask], bytes]) -> None:
        self._asks = asks
        self._prepare = prepare
        self._heap: list[ScheduledRequest] = []
        self._count = 0
        self._known = 0
        self._exhausted = False
        self.last_due_s = 0.0
        self._pull()

    @property
    def exhausted(self) -> bool:
        """Whether all known requests were taken."""
        return self._exhausted and not self._heap

    @property
    def next_due_s(self) -> float:
        return self._heap[0].due_s if self._heap else math.inf

    def all_due(self, now_s: float) -> bool:
        """Whether all known requests are due."""
        self._pull_due(now_s)
        return self._exhausted and self.last_due_s <= now_s

    def add(self, ask: Ask) -> None:
        """Adds a request that follows an ended one."""
        self._push(ask, known=False)

    def take(self, now_s: float) -> tuple[Ask, bytes] | None:
        """The next request with its bytes, if it is due."""
        if not self._heap or self._heap[0].due_s > now_s:
            return None
        planned = heapq.heappop(self._heap)
        if planned.known:
            self._known -= 1
            if not self._known:
                self._pull()
        return planned.ask, planned.data if planned.data is not None else self._prepare(planned.ask)

    def work_ahead(self, now_s: float) -> bool:
        """Takes a request from the load, or encodes one. Returns whether there was one to take or encode."""
        if self._known < LOOK_AHEAD and not self._exhausted:
            self._pull()
            return True
        waiting = [planned for planned in self._heap[:LOOK_AHEAD] if planned.data is None]
        if not waiting:
            return False
        planned = min(waiting)
        if planned.due_s > now_s + AHEAD_S:
            return False
        planned.data = self._prepare(planned.ask)
        return True

    def _pull_due(self, now_s: float) -> None:
        """Takes all due requests from the load, to know when the last one is due."""
        while not self._exhausted and self.last_due_s <= now_s:
            self._pull()

    def never_taken(self, now_s: float) -> list[Ask]:
        """Due requests that were never taken, in order."""
        self._pull_due(now_s)
        return [planned.ask for planned in sorted(self._heap) if planned.due_s <= now_s]

    def _pull(self) -> None:
        ask = next(self._asks, None)
        if ask is None:
            self._exhausted = True
        else:
            self._known += 1
            self._push(ask, known=True)

    def _push(self, ask: Ask, known: bool) -> None:
        self._count += 1
        self.last_due_s = max(self.last_due_s, ask.due_s)
        heapq.heappush(self._heap, ScheduledRequest(ask.due_s, self._count, ask, known=known))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Time limits of requests, and use of connections.

    request_timeout_s   maximum time of a request after the client started it; then it is ``late``
    drain_s             maximum time after the last request was due; then open ones are ``unfinished``. None: no limit
    reuse_connections   whether a connection serves more than one request
    """

    request_timeout_s: float = 600.0
    drain_s: float | None = None
    reuse_connections: bool = True

    def __post_init__(self) -> None:
        if not self.request_timeout_s > 0:
            raise ParameterError("The request timeout must be above 0 seconds.", param="request_timeout_s")
        if self.drain_s is not None and not self.drain_s >= 0:
            raise ParameterError("The drain period cannot be negative.", param="drain_s")


class Watcher(Protocol):
    """Shows progress. It is called about ten times a second while a load is sent, and must be quick."""

    def update(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        """``samples`` are all requests that were started, in that order."""


class LoadClient:
    """Sends loads to one server in one thread, and without a proxy, which would be measured too."""

    def __init__(self, target: ServerTarget, endpoint: ApiEndpoint, options: ClientOptions | None = None) -> None:
        self._target = target
        self._endpoint = endpoint
        self._options = options if options is not None else ClientOptions()
        self._stopped = False
        self._listen, self._call = socket.socketpair()
        for end in (self._listen, self._call):
            end.setblocking(False)
        self._early = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        Stamps.enable(self._early)  # Linux stamps packets some time after the first socket asks: before the run

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._listen.close()
        self._call.close()
        self._early.close()

    def stop(self) -> None:
        """Ends the current run and all later ones. May be called by a signal handler or another thread."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._call.send(b"x")

    def run(self, load: Load, watcher: Watcher | None = None) -> RunRecord:
        """Sends ``load`` until all its requests have ended, or until ``stop`` or Ctrl-C.

        Raises NetworkError if no connection can be made at the start, and ResourceError if this process may not open
        as many connections as the load needs.
        """
        max_open = room_for_connections(load.max_open)
        address = reachable(self._target)
        with _no_collection():
            loop = Loop(self._target, address, self._endpoint, load, self._options, max_open, watcher)
            cpu = time.process_time()
            try:
                try:
                    if not self._stopped:
                        loop.run(self._listen.fileno())
                    interrupted = self._stopped
                except KeyboardInterrupt:
                    interrupted = True
                wall_s = loop.now()
                cpu_s = time.process_time() - cpu
                samples = loop.finish(interrupted)
            finally:
                loop.close()
            responses = [sample.response for sample in samples]
            client = Client(
                wall_s=wall_s,
                cpu_s=cpu_s,
                lag_p50_s=loop.stamps.lag(0.5),
                lag_p99_s=loop.stamps.lag(0.99),
                stamps=loop.stamps.source,
                events=sum(len(response.moments) + response.empty + response.pings for response in responses),
            )
            duration_s = load.describe().get("duration_s")
            if duration_s is None:
                duration_s = loop.last_sent_s
            elif interrupted:
                duration_s = min(duration_s, loop.now())
        return RunRecord(load.describe(), samples, duration_s, client, loop.stamps.began_unix, interrupted)


class Loop:
    """Sends one load. ``samples`` are the requests that were started, in that order."""

    def __init__(
        self,
        target: ServerTarget,
        address: Address,
        endpoint: ApiEndpoint,
        load: Load,
        options: ClientOptions,
        max_open: int,
        watcher: Watcher | None,
    ) -> None:
        self._target, self._address, self._endpoint = target, address, endpoint
        self._load, self._options, self._watcher = load, options, watcher
        self._max_open = max_open
        self._readiness = Readiness()
        self._connections: dict[int, Connection] = {}
        self._idle: dict[int, Connection] = {}
        """By descriptor; the connection used last is taken first."""
        self._open = 0
        self._flights: deque[Flight] = deque()
        self._ahead, self._work_s = True, 0.0
        self._next_tick_s, self._updated_s = TICK_S, 0.0
        self._stopped = self._drained = False
        self.samples: list[RequestSample] = []
        self.last_sent_s = 0.0
        self._began = time.perf_counter()
        self.stamps = Stamps(self._began)
        self._schedule = RequestSchedule(load.begin(), request_writer(target, endpoint))

    def now(self) -> float:
        """Seconds after the start."""
        return time.perf_counter() - self._began

    def run(self, wake: int) -> None:
        """Sends the load until all requests have ended, the drain period is over, or the file ``wake`` is readable."""
        self._readiness.add(wake, IN)
        while not (self._stopped or self._drained) and (self._open or not self._schedule.exhausted):
            reads = self._read(self._wait())
            self._start_due()
            for connection, data, moment, lag in reads:
                self._parse(connection, data, moment, lag)
            self._start_due()
            if self.now() >= self._next_tick_s:
                self._tick(max((lag for _, _, _, lag in reads), default=0.0))

    def finish(self, interrupted: bool) -> tuple[RequestSample, ...]:
        """Ends open requests. Returns every request that was due; requests that were never started are last."""
        why = f"The {'run was stopped' if interrupted else 'drain period ended'} before the request ended."
        for flight in self._flights:
            if flight.file is not None:
                flight.settle("unfinished", why)
        never = "The run ended before the request could start."
        rest = [RequestSample(ask, error=never) for ask in self._schedule.never_taken(self.now())]
        return (*self.samples, *rest)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._readiness.close()

    def _wait(self) -> list[tuple[int, int]]:
        """Ready files; empty when a request is due. With enough time, prepares a request instead of waiting."""
        now = self.now()
        until = self._next_tick_s
        if self._open < self._max_open:
            until = min(until, self._schedule.next_due_s)
        left = until - now
        if not self._ahead or left <= self._work_s:
            return self._readiness.wait(left)
        if not (ready := self._readiness.wait(0)):
            self._ahead = self._schedule.work_ahead(now)
            self._work_s = max(0.9 * self._work_s, self.now() - now)
        return ready

    def _read(self, ready: list[tuple[int, int]]) -> list[tuple[Connection, bytes, float, float]]:
        reads: list[tuple[Connection, bytes, float, float]] = []
        read = self.stamps.read
        for file, mask in ready:
            connection = self._connections.get(file)
            if connection is None:
                self._stopped = True  # only the wake-up file is no connection
            elif (mask & OUT or connection.connecting) and not self._writable(connection):
                continue
            elif mask & ~OUT:
                try:
                    reads.append((connection, *read(connection.socket)))
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._fail(connection, error)
        for connection, *_ in reads:
            if connection.flight is None:  # the server closed an idle connection, or sent bytes on it
                self._close(connection)
        return [each for each in reads if each[0].flight is not None]

    def _writable(self, connection: Connection) -> bool:
        """Continues to connect or send. Returns whether the connection is still open."""
        try:
            connecting = connection.connecting
            sent = connection.writable()
            if connecting and not connection.opening:
                sent = self._opened(connection)
        except OSError as error:
            self._fail(connection, error)
            return False
        if sent and not connection.opening:
            self._sent(connection)
        self._watch(connection)
        return True

    def _opened(self, connection: Connection) -> bool:
        """Sends the request of a new connection. Returns whether all of it was sent."""
        flight = connection.flight
        assert flight is not None
        flight.sample.connect_s = self.now() - connection.began_s
        return connection.send(flight.request)

    def _sent(self, connection: Connection) -> None:
        flight = connection.flight
        if flight is not None and flight.sample.sent_s is None:
            self.last_sent_s = flight.sample.sent_s = self.now()

    def _watch(self, connection: Connection) -> None:
        """Waits for the socket to be writable while it connects or bytes are unsent, and otherwise not."""
        wanted = connection.connecting or bool(connection.unsent)
        if wanted != connection.waits_writable:
            connection.waits_writable = wanted
            self._readiness.change(connection.file, IN | OUT if wanted else IN)

    def _start_due(self) -> None:
        """Starts due requests, at most MAX_STARTS at a time so that responses to the first ones are read early."""
        for _ in range(MAX_STARTS):
            if self._open >= self._max_open or (taken := self._schedule.take(self.now())) is None:
                return
            self._start(*taken)

    def _start(self, ask: Ask, request: bytes) -> None:
        sample = RequestSample(ask, started_s=self.now())
        flight = Flight(sample, request, self._endpoint)
        self.samples.append(sample)
        self._flights.append(flight)
        self._open += 1
        self._ahead = True
        if self._idle:
            self._reuse(self._idle.popitem()[1], flight)
        else:
            self._connect(flight)

    def _connect(self, flight: Flight) -> None:
        try:
            connection = Connection(self._address, self._target)
        except OSError as error:
            self._end_broken(flight, error)
            return
        connection.began_s = self.now()
        connection.flight = flight
        flight.file = connection.file
        self._connections[connection.file] = connection
        self._readiness.add(connection.file, IN | OUT)

    def _reuse(self, connection: Connection, flight: Flight) -> None:
        """Sends a request on an idle connection."""
        connection.flight = flight
        flight.file = connection.file
        try:
            sent = connection.send(flight.request)
        except OSError as error:
            self._fail(connection, error)
            return
        if sent:
            self._sent(connection)
        self._watch(connection)

    def _parse(self, connection: Connection, data: bytes, moment: float, lag: float) -> None:
        flight = connection.flight
        assert flight is not None
        try:
            if connection.opening:
                if not data:
                    raise EOFError
                connection.received(data)
                if not connection.opening and self._opened(connection):
                    self._sent(connection)
                self._watch(connection)
                return
            plain, ended = connection.received(data)
            complete = bool(plain) and flight.feed(plain, moment, lag)
            if ended and not complete:
                flight.end(moment)
                complete = True
        except (OSError, EOFError, ValueError) as error:
            self._fail(connection, error)
            return
        if complete:
            self._complete(connection, flight, ended)

    def _complete(self, connection: Connection, flight: Flight, ended: bool) -> None:
        flight.judge()
        connection.flight = None
        connection.served = True
        keep = flight.http.keep_alive and self._options.reuse_connections
        if keep and not ended and not connection.unsent:
            self._idle[connection.file] = connection
        else:
            self._close(connection)
        self._ended(flight)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Closes a failed connection. Sends its request once more if the connection was reused and received nothing."""
        flight, served = connection.flight, connection.served
        self._close(connection)
        if flight is None:
            return
        if served and flight.http.untouched and not flight.resent:
            flight.resent, flight.sample.sent_s = True, None
            self._connect(flight)
        else:
            self._end_broken(flight, error)

    def _end_broken(self, flight: Flight, error: Exception) -> None:
        flight.sample.ended_s = self.now()
        flight.settle("broken", str(network_error(error, self._target)))
        self._ended(flight)

    def _ended(self, flight: Flight) -> None:
        flight.release()
        self._open -= 1
        ask = self._load.follow(flight.sample, self.now())
        if ask is not None:
            self._schedule.add(ask)

    def _close(self, connection: Connection) -> None:
        self._idle.pop(connection.file, None)
        del self._connections[connection.file]
        self._readiness.remove(connection.file)
        connection.close()

    def _tick(self, lag: float) -> None:
        now = self.now()
        self._next_tick_s = now + TICK_S
        self._ahead = True
        self.stamps.align()
        self._expire(now)
        drain_s = self._options.drain_s
        if drain_s is not None and self._schedule.all_due(now) and now > self._schedule.last_due_s + drain_s:
            self._drained = True
        if self._watcher is not None and (lag < LATE_S or now - self._updated_s > LONGEST_SILENCE_S):
            self._updated_s = now
            self._watcher.update(now, self.samples, self._open)

    def _expire(self, now: float) -> None:
        """Ends requests that exceed the timeout. Flights are in order of their start: the first is the oldest."""
        limit = self._options.request_timeout_s
        while self._flights:
            flight = self._flights[0]
            assert flight.sample.started_s is not None
            if flight.file is not None and now - flight.sample.started_s <= limit:
                return
            self._flights.popleft()
            if flight.file is not None:
                self._close(self._connections[flight.file])
                flight.sample.ended_s = now
                flight.settle("late", f"It took longer than {limit:g} s.")
                self._ended(flight)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables the garbage collector, whose pauses would delay requests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def room_for_connections(wanted: int | None) -> int:
    """``wanted`` or, if it is None, the number of connections that this process may open.

    Raises the limit of open files to the hard limit; raises ResourceError if fewer than ``wanted`` are possible.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    room = soft - SPARE_FILES if soft != resource.RLIM_INFINITY else 1 << 20
    if wanted is not None and wanted > room:
        message = f"{wanted} requests at once need more connections than the {room} that this process may open."
        raise ResourceError(message, hint="Raise the limit with `ulimit -n`, or lower --concurrency.")
    return room if wanted is None else wanted
