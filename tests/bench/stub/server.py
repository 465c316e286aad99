"""The stub's loop: one thread, one epoll, absolute deadlines.

A request's moments count from when the kernel had it, by the kernel's own stamp, so that a late look at a socket delays
nothing but itself. Before a deadline the loop sleeps, and spins for the last fraction of a millisecond.
"""

from __future__ import annotations

import gc
import heapq
import resource
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.bench.stub.requests import STAMP, Request, count_tokens, read, take_request
from tests.bench.stub.script import Script
from tests.bench.stub.truth import Truth
from tests.bench.stub.voices import VOICES, Chat, Voice
from tests.bench.stub.wire import Asked, Write, head, writes

SPIN_S: Final = 0.0002
MAX_SENDS: Final = 64
"""Writes between two looks at the sockets."""
MODEL: Final = "stub"
CONTEXT: Final = 32768


@dataclass(slots=True, eq=False)
class Connection:
    """An open connection, and the response on it: ``next`` is the next write, ``going`` are the later ones."""

    link: socket.socket
    number: int
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    truth: Truth | None = None
    next: Write | None = None
    going: Iterator[Write] = field(default_factory=lambda: iter(()))
    close: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all requests, as ``POST /rules`` sets it; the truth begins anew then.

    freeze_at_s, freeze_s  after the first request the whole stub stands still, from when and for how long
    capacity               how many requests are served at a time; others queue
    key                    who does not bring it is refused
    """

    freeze_at_s: float | None = None
    freeze_s: float = 0.0
    capacity: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits until others are finished."""

    connection: Connection
    going: Iterator[Write]
    truth: Truth


class Stub:
    """Listens on loopback. ``run`` serves until the process ends."""

    def __init__(self, port: int) -> None:
        _allow_many_files()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setsockopt(socket.SOL_SOCKET, STAMP, 1)  # connections inherit it, so their first bytes have one
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._open: dict[int, Connection] = {}
        self._due: list[tuple[float, int, Connection, Truth]] = []
        self._turn = 0
        self._accepted = 0
        self._rules = Rules()
        self._freeze_from: float | None = None
        self._serving = 0
        self._waiting: deque[Waiting] = deque()
        self._truths: list[Truth] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        gc.freeze()
        gc.disable()
        while True:
            self._freeze()
            self._send_due()
            self._wait()
            for number, what in self._epoll.poll(0):
                if number == self._listener.fileno():
                    self._accept()
                elif (connection := self._open.get(number)) is not None:
                    self._look(connection, what)

    def _freeze(self) -> None:
        if self._freeze_from is not None and (now := time.perf_counter()) >= self._freeze_from:
            time.sleep(max(0.0, self._freeze_from + self._rules.freeze_s - now))
            self._freeze_from = None

    def _wait(self) -> None:
        """Waits until bytes arrive or the next write is almost due. Unlike epoll, select is precise to microseconds."""
        moments = [self._due[0][0]] if self._due else []
        if self._freeze_from is not None:
            moments.append(self._freeze_from)
        left = min(moments) - time.perf_counter() - SPIN_S if moments else None
        if left is None or left > 0:
            select.select([self._epoll.fileno()], [], [], left)

    def _send_due(self) -> None:
        for _ in range(MAX_SENDS):
            if not self._due or self._due[0][0] > time.perf_counter():
                return
            at, _, connection, truth = heapq.heappop(self._due)
            if connection.truth is truth:  # else the client went away
                self._send(connection, truth, at)

    def _send(self, connection: Connection, truth: Truth, at: float) -> None:
        """Does the write that is due, and plans the next one."""
        write = connection.next
        assert write is not None
        before = time.perf_counter()
        self._push(connection, write.data)
        after = time.perf_counter()
        truth.late_s = max(truth.late_s, before - at)
        for _ in range(write.ends):
            truth.before.append(before)
            truth.after.append(after)
        following = next(connection.going, None)
        if following is not None:
            self._plan(connection, truth, following)
        else:
            truth.ended = after
            self._finish(connection, at, write.close)

    def _plan(self, connection: Connection, truth: Truth, write: Write) -> None:
        self._turn += 1
        connection.next = write
        heapq.heappush(self._due, (truth.taken + write.at_s, self._turn, connection, truth))

    def _finish(self, connection: Connection, at: float, close: str | None) -> None:
        """A response is complete; ``at`` is when it was due, and the next request is served from then on."""
        connection.truth = connection.next = None
        self._free(at)
        if close is not None:
            self._close(connection, close)
        else:
            self._answer(connection, at)

    def _free(self, at: float) -> None:
        self._serving -= 1
        while self._waiting and self._room():
            waiting = self._waiting.popleft()
            if waiting.connection.truth is waiting.truth:
                self._serve(waiting, max(at, waiting.truth.arrived))

    def _room(self) -> bool:
        return self._rules.capacity is None or self._serving < self._rules.capacity

    def _serve(self, request: Waiting, taken: float) -> None:
        self._serving += 1
        request.truth.taken = taken
        request.connection.going = request.going
        self._plan(request.connection, request.truth, next(request.going))

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, STAMP, 1)
            self._accepted += 1
            self._open[link.fileno()] = Connection(link, self._accepted)
            self._epoll.register(link, select.EPOLLIN)

    def _look(self, connection: Connection, what: int) -> None:
        """Reads a connection, or sends waiting bytes."""
        if what & select.EPOLLOUT and connection.outbox:
            self._push(connection, b"")
        if not what & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data, moment = read(connection.link)
        except BlockingIOError:
            return
        except ConnectionError:
            data, moment = b"", 0.0
        if not data:
            self._drop(connection)
            return
        connection.inbox += data
        self._answer(connection, moment)

    def _answer(self, connection: Connection, moment: float) -> None:
        """Starts the requests that were received, one after another."""
        while connection.truth is None and (request := take_request(connection.inbox)) is not None:
            voice = VOICES.get(request.path)
            if voice is None:
                self._tell(connection, *self._control(request))
            elif (refusal := self._refusal(request)) is not None:
                self._tell(connection, refusal[0], voice.error(*refusal))
            else:
                self._begin(connection, voice, request.json(), moment)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        keys = request.headers.get("authorization", "").removeprefix("Bearer "), request.headers.get("x-api-key")
        if self._rules.key is not None and self._rules.key not in keys:
            return 401, "That key is not known."
        told = request.json() if request.method == "POST" else {}
        if told.get("model", MODEL) != MODEL:
            return 404, f"The model {told['model']} does not exist."
        return None

    def _begin(self, connection: Connection, voice: Voice, told: dict[str, Any], moment: float) -> None:
        """Starts a request for a completion, or puts it into the queue."""
        script = Script.of(told.get("stub", {}))
        most = int(told.get("max_tokens") or told.get("max_completion_tokens") or 16)
        asked = Asked(count_tokens(told), most, bool(told.get("stream")))
        truth = Truth(script.id or str(len(self._truths)), connection.number, moment, moment)
        self._truths.append(truth)
        connection.truth = truth
        if len(self._truths) == 1 and self._rules.freeze_at_s is not None:
            self._freeze_from = moment + self._rules.freeze_at_s
        request = Waiting(connection, writes(script, voice, asked), truth)
        if self._room():
            self._serve(request, moment)
        else:
            self._waiting.append(request)

    def _control(self, request: Request) -> tuple[int, bytes]:
        """Responses to all requests but completions."""
        match request.method, request.path:
            case "GET", "/v1/models":
                refusal = self._refusal(request)
                if refusal is not None:
                    return refusal[0], Chat().error(*refusal)
                model = {"id": MODEL, "object": "model", "owned_by": "stub", "max_model_len": CONTEXT}
                return 200, orjson.dumps({"object": "list", "data": [model]})
            case "POST", "/tokenize":
                count = count_tokens(request.json())
                return 200, orjson.dumps({"count": count, "max_model_len": CONTEXT, "tokens": [7] * count})
            case "GET", "/truth":
                return 200, orjson.dumps([truth.plain for truth in self._truths])
            case "POST", "/rules":
                self._rules = Rules(**request.json())
                self._truths = []
                return 200, b"{}"
        return 404, Chat().error(404, f"There is no {request.method} {request.path}.")

    def _tell(self, connection: Connection, status: int, body: bytes) -> None:
        self._push(connection, head(status, "application/json", f"Content-Length: {len(body)}") + body)

    def _push(self, connection: Connection, data: bytes) -> None:
        """Sends bytes; bytes that the kernel does not accept are sent later."""
        if connection.outbox:
            connection.outbox += data
            data = bytes(connection.outbox)
        try:
            sent = connection.link.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except ConnectionError:  # reading will tell that the client is gone
            sent = len(data)
        if sent < len(data) or connection.outbox:
            connection.outbox[:] = data[sent:]
            self._epoll.modify(connection.link, select.EPOLLIN | (select.EPOLLOUT if connection.outbox else 0))
        if connection.close is not None and not connection.outbox:
            self._drop(connection)

    def _close(self, connection: Connection, how: str) -> None:
        if how == "reset":
            connection.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close = how
        if not connection.outbox:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Closes a connection and ends its response."""
        served = connection.truth is not None and connection.next is not None
        connection.truth = connection.next = None
        self._open.pop(connection.link.fileno(), None)
        connection.link.close()
        if served:
            self._free(time.perf_counter())


def _allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
