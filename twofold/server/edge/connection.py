"""Limits of an HTTP request for h11, in bytes, lines and chunks.

h11 bounds incomplete data only: a head that arrives in one read has any length (16,000 headers take 40 ms), and all
one-byte chunks of a read are parsed at once (40,000 take 0.4 s). So:

1. A head has at most ``head_bytes`` bytes and ``head_lines`` lines, which is checked before it is parsed.
2. A body has at most ``small_chunks`` chunks while they hold fewer than ``chunk_bytes`` on average.
3. A request has one framing: Content-Length with Transfer-Encoding is refused, as RFC 9112, section 6.1, allows, so
   that a proxy before this server cannot read the request differently.
"""

from __future__ import annotations

from typing import Final

import h11

from twofold.server.edge.limits import ConnectionLimits

HEADERS_TOO_LARGE: Final = 431
VERSIONS: Final = (b"1.0", b"1.1")
MAX_TARGET: Final = 256
IN_CHUNKS: Final = b"\r\ntransfer-encoding: chunked\r\n"


class BoundedConnection(h11.Connection):
    """A server's h11 connection that raises h11.RemoteProtocolError for a request beyond the limits.

    ``requests`` counts the requests with a whole head; ``refused`` is the HTTP status for a refused request.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._limits = limits
        self._head = b""
        self._chunks = 0
        self._chunk_bytes = 0
        self._chunked = False
        self.requests = 0
        self.refused: int | None = None

    @property
    def target(self) -> str:
        """The path of the last request, which may be incomplete; "/" if it is not known."""
        words = self._head.split(b"\n", 1)[0].split()
        return words[1].decode("latin-1").partition("?")[0] if len(words) > 1 else "/"

    @property
    def partial(self) -> bool:
        """Whether a part of a head has arrived."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11 has an overload for each kind
        """``h11.Connection.send``."""
        if type(event) is h11.Data and event.data and self._chunked and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data)
        sent = super().send(event)
        if type(event) is not h11.Data:
            self._chunked = type(event) is h11.Response and sent is not None and IN_CHUNKS in sent.lower()
        return sent

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._next_event()
        except h11.RemoteProtocolError as error:
            self.refused = error.error_status_hint
            raise

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._begin(event)
        elif isinstance(event, h11.Data):
            self._count(event)
        return event

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        head = data[: _head_end(data)]
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

    def _count(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._chunk_bytes += len(data.data)
        if self._chunks > self._limits.small_chunks and self._chunk_bytes < self._chunks * self._limits.chunk_bytes:
            raise h11.RemoteProtocolError("the body was sent in too many small chunks")


def _head_end(data: bytes) -> int:
    """The length of the head at the start of ``data``; that of ``data`` if the head is incomplete."""
    ends = [at + len(mark) for mark in (b"\r\n\r\n", b"\n\n", b"\n\r\n") if (at := data.find(mark)) >= 0]
    return min(ends, default=len(data))
