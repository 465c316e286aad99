"""uvicorn's h11 protocol with a time limit for every state of a connection.

    state      the connection is                                      after the limit
    HEAD       new, or a part of a request's head has arrived         head_s: 408, then LEAVING
    BUSY       waiting for a response                                 limits of the endpoint
    STUCK      sending a response of which the client reads nothing   stall_s: reset
    UNREAD     done with its response, but not with the request       linger_s: closed
    IDLE       kept open for the next request                         keep_alive_s: closed
    LEAVING    about to close; further bytes are dropped              linger_s: closed
    CLOSING    closed, except for bytes that are still to be sent     stall_s: reset

A timer of each connection checks its state every ``pulse_s``. Refused requests get a response in the API protocol of
their path, if the path is known: 400 for bytes that are not HTTP, 431 for a head that is too long, 408 for a head that
is too slow. After a response to an incomplete request the server reads on for a moment: closing a socket with unread
bytes resets the connection, which could destroy the response (RFC 9112, section 9.6).

A client that closes its side before the response has disconnected: its request is cancelled. A client that only closed
the sending half looks the same, so it gets a 400 if nothing was sent yet.

h11 bounds incomplete data only: a head that arrives in one read has any length (16,000 headers take 40 ms), and all
one-byte chunks of a read are parsed at once (40,000 take 0.4 s). So:

1. A head has at most ``head_bytes`` bytes and ``head_lines`` lines, which is checked before it is parsed.
2. A body has at most ``small_chunks`` chunks while they hold fewer than ``chunk_bytes`` on average.
3. A request has one framing: Content-Length with Transfer-Encoding is refused, as RFC 9112, section 6.1, allows, so
   that a proxy before this server cannot read the request differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server, ServerState

from twofold.core.errors import BusyError, SlowClientError, TwofoldError, UsageError
from twofold.server.edge.limits import ConnectionLimits
from twofold.server.edge.refusals import DialectOf, HeadError, error_response, new_request_id

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
"""Paths that need no key and are served beyond the connection limit."""
PROGRESS_BYTES: Final = 4096
"""A client that reads at least this within ``stall_s`` is not stuck."""
YIELDING_S: Final = 1.0
"""Minimum idle time of a connection that may be closed for a new one."""
MAX_CANDIDATES: Final = 64
"""Idle connections of which one may be closed for a new one; this bounds the cost of a new connection."""
READS_PER_TURN: Final = 32
"""Maximum reads, and new connections, in one turn of the event loop: parsing and starting a request takes 0.3 ms."""
FULL_RETRY_S: Final = 2.0
UNSENT_BYTES: Final = 32 << 10
"""Maximum unsent bytes of a connection in the kernel, and about as many in this process. By default the kernel buffers
megabytes of a stream that its client does not read, so the stream would keep its slot for minutes."""
HEADERS_TOO_LARGE: Final = 431
VERSIONS: Final = (b"1.0", b"1.1")
MAX_TARGET: Final = 256
IN_CHUNKS: Final = b"\r\ntransfer-encoding: chunked\r\n"


class ConnectionState(Enum):
    """The states of the table above."""

    HEAD = auto()
    BUSY = auto()
    STUCK = auto()
    UNREAD = auto()
    IDLE = auto()
    LEAVING = auto()
    CLOSING = auto()


class EdgeServer(Server):
    """uvicorn's server for ``app``, on the sockets that ``serve`` gets, without signal handlers.

    It ignores environment variables and the forwarding headers of proxies.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        dialect_of: DialectOf,
        *,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> None:
        connection = partial(EdgeProtocol, limits, dialect_of, {}, ReadQueue())
        config = Config(
            app,
            http=cast(type[asyncio.Protocol], connection),
            ws="none",
            lifespan="off",
            interface="asgi3",
            workers=1,
            backlog=READS_PER_TURN,  # asyncio also accepts at most so many connections in a turn
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            forwarded_allow_ips="",
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
        super().__init__(config)
        self._backlog = limits.connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listening in sockets or ():
            listening.listen(self._backlog)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_listening(self) -> None:
        """Accepts no further connections; open ones continue."""
        for server in self.servers:
            server.close()


class ReadQueue:
    """Limits how many reads of all connections are parsed in one turn of the event loop. The others wait in order."""

    def __init__(self) -> None:
        self._waiting: deque[EdgeProtocol] = deque()
        self._parsed = 0
        """Reads parsed in this turn; above 0, the next turn is scheduled."""

    def admit(self, connection: EdgeProtocol) -> bool:
        """Whether the connection may parse what it read; else its ``parse_waiting`` is called in a later turn."""
        if not self._parsed:
            connection.loop.call_soon(self._turn, connection.loop)
        if self._waiting or self._parsed >= READS_PER_TURN:
            self._waiting.append(connection)
            return False
        self._parsed += 1
        return True

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._parsed = min(len(self._waiting), READS_PER_TURN)
        if self._parsed:
            loop.call_soon(self._turn, loop)
        for _ in range(self._parsed):
            self._waiting.popleft().parse_waiting()


class EdgeProtocol(H11Protocol):
    """One connection. ``silent`` has the server's connections without a complete head so far, the oldest first."""

    conn: BoundedConnection
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # it is None before the first request

    def __init__(
        self,
        limits: ConnectionLimits,
        dialect_of: DialectOf,
        silent: dict[EdgeProtocol, None],
        reads: ReadQueue,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = QuietLogger(self.logger)
        self.limits = limits
        self.dialect_of = dialect_of
        self._silent = silent
        self._reads = reads
        self._waiting = b""
        self.conn = BoundedConnection(limits)
        self.timeout_keep_alive = limits.keep_alive_s  # type: ignore[assignment]  # seconds, not only whole ones
        self._max_age = {
            ConnectionState.HEAD: limits.head_s,
            ConnectionState.STUCK: limits.stall_s,
            ConnectionState.UNREAD: limits.linger_s,
            ConnectionState.IDLE: limits.keep_alive_s,
            ConnectionState.LEAVING: limits.linger_s,
            ConnectionState.CLOSING: limits.stall_s,
        }
        self._leaving = False
        self._beyond = False
        self._pulse: asyncio.TimerHandle | None = None
        self._seen: tuple[ConnectionState, int] = (ConnectionState.HEAD, 0)
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._socket = transport
        super().connection_made(cast(asyncio.Transport, LingeringTransport(transport, self._close)))
        self.app_state = {"writer": StreamWriter(transport, self.conn, self.flow)}
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if self._full:
            self._make_room()
        self._silent[self] = None
        self._beyond = self._full
        if len(self.connections) > self.limits.connections + self.limits.spare:
            self._socket.abort()
        self._since = self.loop.time()
        self._pulse = self.loop.call_later(self.limits.pulse_s, self._check_state)

    def connection_lost(self, exc: Exception | None) -> None:
        self._silent.pop(self, None)
        self._waiting = b""
        if self._pulse is not None:
            self._pulse.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.transport.close = self._socket.close  # type: ignore[method-assign]  # no reference cycle: no work for gc

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            self._waiting += data
        elif self._reads.admit(self):
            self._parse(data)
        else:
            self._waiting = data
            self._socket.pause_reading()

    def parse_waiting(self) -> None:
        """Parses the bytes that waited for a turn of the event loop, if there are any, and reads on."""
        data, self._waiting = self._waiting, b""
        if data:
            if not self.flow.read_paused:
                self._socket.resume_reading()
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        if not self._leaving and not self.transport.is_closing():
            super().data_received(data)
            if self.conn.requests:
                self._silent.pop(self, None)

    def eof_received(self) -> None:
        """The client closed its side; after this asyncio sends the written bytes and closes the transport."""
        self.parse_waiting()
        if self._leaving:
            return
        if self.conn.partial or self.conn.their_state is h11.SEND_BODY:
            self.refuse(UsageError("The connection was closed before the request was complete."))
        elif self.cycle is not None and not self.cycle.response_started:
            self.refuse(UsageError("The client disconnected before the response was sent."))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        """Called by uvicorn for every request that h11 refuses."""
        if self.conn.refused == HEADERS_TOO_LARGE:
            sizes = f"{self.limits.head_bytes // 1024} KiB in {self.limits.head_lines} lines"
            self.refuse(HeadError(f"The request head is longer than {sizes}."))
        else:
            self.refuse(UsageError("This is not a valid HTTP request."))

    def refuse(self, error: TwofoldError) -> None:
        """Sends ``error`` as the response if none has begun, and closes the connection."""
        request_id = new_request_id()
        response = error_response(self.dialect_of(self.conn.target), error, request_id)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._socket.close()
            return
        headers = [*response.headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=response.status, headers=headers),
            h11.Data(data=response.body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._leave()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops; a running request may finish."""
        if self._leaving or self.transport.is_closing():
            self.transport.close()
        else:
            super().shutdown()

    @property
    def app(self) -> Any:
        """The application for the next request; its type is uvicorn's own ASGI type."""
        return crowded(self._app, self.dialect_of) if self._beyond and self._full else self._app

    @app.setter
    def app(self, app: Any) -> None:
        self._app = app

    @property
    def state(self) -> ConnectionState:
        """The current state."""
        if self.transport.is_closing():
            return ConnectionState.CLOSING
        if self._leaving:
            return ConnectionState.LEAVING
        if self.flow.write_paused:
            return ConnectionState.STUCK
        if self.cycle is not None and not self.cycle.response_complete:
            return ConnectionState.BUSY
        if self.conn.their_state is h11.SEND_BODY:
            return ConnectionState.UNREAD
        return ConnectionState.HEAD if self.cycle is None or self.conn.partial else ConnectionState.IDLE

    @property
    def idle_s(self) -> float:
        """Seconds since the last bytes of a connection without a request; 0 for any other."""
        state = self.state
        idle = state is ConnectionState.IDLE or (state is ConnectionState.HEAD and not self.conn.partial)
        return self.loop.time() - self._since if idle else 0.0

    @property
    def _full(self) -> bool:
        return len(self.connections) > self.limits.connections

    def _check_state(self) -> None:
        """Ends the connection if it was in the same state for too long without progress."""
        now = self.loop.time()
        seen = (self.state, self._progress())
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > self._max_age.get(seen[0], float("inf")):
            self._end(seen[0])
        self._pulse = self.loop.call_later(self.limits.pulse_s, self._check_state)

    def _progress(self) -> int:
        """A number that changes with each request, and with the bytes that a client reads of a response."""
        if self.flow.write_paused:
            return self.transport.get_write_buffer_size() // PROGRESS_BYTES
        return self.conn.requests

    def _end(self, state: ConnectionState) -> None:
        if state in (ConnectionState.STUCK, ConnectionState.CLOSING):
            self._socket.abort()
        elif state is ConnectionState.HEAD and self.conn.partial:
            self.refuse(SlowClientError(f"The request head did not arrive within {self.limits.head_s:g} s."))
        else:
            self._socket.close()

    def _close(self) -> None:
        """uvicorn's ``close``: reads on for a moment if the request is incomplete."""
        if self.conn.their_state is h11.SEND_BODY and not self._leaving:
            self._leave()
        else:
            self._socket.close()

    def _leave(self) -> None:
        """Closes the sending side, and reads on for a moment."""
        self._leaving = True
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _make_room(self) -> None:
        """Closes the oldest connection that has sent no request yet, however young: clients send requests at once. If
        there is none, closes the one of MAX_CANDIDATES connections that has been idle for longest."""
        if self._silent:
            oldest_silent = next(iter(self._silent))
            del self._silent[oldest_silent]
            self.connections.discard(oldest_silent)
            oldest_silent._socket.abort()
            return
        others = (other for other in self.connections if isinstance(other, EdgeProtocol) and other is not self)
        oldest = max(islice(others, MAX_CANDIDATES), key=lambda other: other.idle_s, default=None)
        if oldest is not None and oldest.idle_s >= YIELDING_S:
            self.connections.discard(oldest)
            oldest.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: upgrades are ignored, as RFC 9110, section 7.8, allows."""


class QuietLogger(logging.Logger):
    """A logger without warnings, which are about faults of clients: any client could fill the log with them."""

    def __init__(self, parent: logging.Logger) -> None:
        super().__init__(parent.name, parent.getEffectiveLevel())
        self.parent = parent

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


class StreamWriter:
    """Writes pieces, not empty, of a response without Content-Length that has begun and not ended: as ASGI's ``send``
    does, with fewer calls. Each request's state has it as ``writer``. ``flow.write_paused`` is set while the client
    does not keep up. Pieces written after a disconnect are dropped."""

    def __init__(self, transport: asyncio.Transport, conn: BoundedConnection, flow: FlowControl) -> None:
        self.flow = flow
        self._transport, self._conn = transport, conn

    def write(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._conn.chunked else data)


class LingeringTransport:
    """A transport with another ``close``."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def crowded(app: ASGIApp, dialect_of: DialectOf) -> ASGIApp:
    """The application for connections beyond the limit: it responds with 503, except for OPEN_PATHS."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await app(scope, receive, send)
            return
        error = BusyError("The server's connection limit is reached.", retry_after_s=FULL_RETRY_S)
        request_id = new_request_id()
        extra = ((b"x-request-id", request_id.encode()),)
        await error_response(dialect_of(scope["path"]), error, request_id, extra).send(send)

    return respond


class BoundedConnection(h11.Connection):
    """A server's h11 connection that raises h11.RemoteProtocolError for a request beyond the limits.

    ``requests`` counts the requests with a complete head; ``refused`` is the HTTP status for a refused request;
    ``chunked`` is whether the last response is sent in chunks.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._limits = limits
        self._head = b""
        self._chunks = 0
        self._chunk_bytes = 0
        self.chunked = False
        self.requests = 0
        self.refused: int | None = None

    @property
    def target(self) -> str:
        """The path of the last request, which may be incomplete; "/" if it is not known."""
        words = self._head.split(b"\n", 1)[0].split()
        return words[1].decode("latin-1").partition("?")[0] if len(words) > 1 else "/"

    @property
    def partial(self) -> bool:
        """Whether only a part of a head has arrived."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11 has an overload for each kind
        sent = super().send(event)
        if isinstance(event, h11.Response):
            self.chunked = sent is not None and IN_CHUNKS in sent.lower()
        return sent

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            if self.their_state is h11.IDLE:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._chunks += event.chunk_start
                self._chunk_bytes += len(event.data)
                small = self._chunk_bytes < self._chunks * self._limits.chunk_bytes
                if small and self._chunks > self._limits.small_chunks:
                    raise h11.RemoteProtocolError("the body was sent in too many small chunks")
        except h11.RemoteProtocolError as error:
            self.refused = error.error_status_hint
            raise
        return event

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        ends = [at + len(mark) for mark in (b"\r\n\r\n", b"\n\n", b"\n\r\n") if (at := data.find(mark)) >= 0]
        head = data[: min(ends, default=len(data))]  # all bytes if the head is incomplete
        self._head = head[:MAX_TARGET]
        if len(head) > self._limits.head_bytes or head.count(b"\n") > self._limits.head_lines:
            raise h11.RemoteProtocolError("the request head is too long", error_status_hint=HEADERS_TOO_LARGE)

    def _begin(self, request: h11.Request) -> None:
        self.requests += 1
        self._chunks = self._chunk_bytes = 0
        if request.http_version not in VERSIONS:
            raise h11.RemoteProtocolError("the version of HTTP is neither 1.0 nor 1.1")
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            raise h11.RemoteProtocolError("a request has either Content-Length or Transfer-Encoding")
