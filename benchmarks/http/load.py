"""A load generator that does not disturb what it measures.

It is one thread without a library between it and the sockets. While it measures it only notes when how many bytes came;
what they say is read afterwards. It is open-loop: a request leaves when it is due, whatever became of those before it.
Each request has a connection of its own, so connecting counts. What it holds is bounded: ``MOST_OPEN`` requests at
once, ``MOST_BYTES`` of a reply.

With a ``pause_s`` it sleeps after each look at its sockets, and so takes less of a processor that it shares with the
server: times are late by up to that much, how much came in all is not.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

MOST_OPEN: Final = 512
MOST_BYTES: Final = 8 << 20
READ_BYTES: Final = 64 << 10
CONNECT_S: Final = 5.0
CHUNKED: Final = b"transfer-encoding: chunked"
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
CHUNKS: Final = 0
"""The size of what comes in chunks."""
LENGTH: Final = b"content-length:"


@dataclass(frozen=True, slots=True)
class Call:
    """A request to send ``due`` seconds after the start."""

    due: float
    path: str
    body: dict[str, Any]


@dataclass(slots=True)
class Reply:
    """What came of a call, in seconds after the start: ``marks`` are the moments of reading and the bytes until then.

    ``ended`` is None where it was not all there when the time was over, or was refused by us for want of room. ``size``
    is what the head says of its length: bytes, CHUNKS, or None while that is not known.
    """

    due: float
    sent: float | None = None
    ended: float | None = None
    data: bytearray = field(default_factory=bytearray)
    marks: list[tuple[float, int]] = field(default_factory=list)
    size: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the response that ``data`` begins with is all there."""
        if self.size is None:
            self.size = _size(self.data)
        if self.size == CHUNKS:
            return self.data.endswith(LAST_CHUNK)
        return self.size is not None and len(self.data) >= self.size


class Load:
    """Sends calls to a server on this machine."""

    def __init__(self, port: int, pause_s: float = 0.0) -> None:
        self._address = ("127.0.0.1", port)
        self._pause_s = pause_s
        self._open: dict[socket.socket, Reply] = {}
        self._began = 0.0

    def run(self, calls: Sequence[Call], limit_s: float) -> list[Reply]:
        """The replies in the order of the calls, which are ascending; after ``limit_s`` what is open is given up."""
        requests = [_request(self._address[1], call) for call in calls]
        replies = [Reply(call.due) for call in calls]
        coming = deque(zip(replies, requests, strict=True))
        with selectors.DefaultSelector() as selector:
            self._began = time.perf_counter()
            try:
                while (coming or self._open) and self._now() < limit_s:
                    self._send_due(selector, coming)
                    wait = coming[0][0].due if coming else limit_s
                    self._receive(selector, max(0.0, min(wait, limit_s) - self._now()))
            finally:
                for connection in self._open:
                    connection.close()
                self._open.clear()
        return replies

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _send_due(self, selector: selectors.BaseSelector, coming: deque[tuple[Reply, bytes]]) -> None:
        while coming and coming[0][0].due <= self._now():
            reply, request = coming.popleft()
            if len(self._open) >= MOST_OPEN:
                continue
            connection = self._connect()
            if connection is None:
                continue
            reply.sent = self._now()
            connection.sendall(request)
            connection.setblocking(False)
            self._open[connection] = reply
            selector.register(connection, selectors.EVENT_READ)

    def _connect(self) -> socket.socket | None:
        """None where the server does not take it."""
        try:
            connection = socket.create_connection(self._address, CONNECT_S)
        except OSError:
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _receive(self, selector: selectors.BaseSelector, wait_s: float) -> None:
        if not self._open:
            time.sleep(wait_s)
            return
        ready = selector.select(wait_s)
        for key, _ in ready:
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if not self._read(connection):
                selector.unregister(connection)
                del self._open[connection]
                connection.close()
        if ready and self._pause_s:
            time.sleep(self._pause_s)

    def _read(self, connection: socket.socket) -> bool:
        """Takes what came; whether more is to come."""
        reply = self._open[connection]
        try:
            piece = connection.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        now = self._now()
        reply.data += piece
        reply.marks.append((now, len(reply.data)))
        if reply.whole:
            reply.ended = now
            return False
        return bool(piece) and len(reply.data) < MOST_BYTES


def _size(data: bytes | bytearray) -> int | None:
    """The length of a response with its head; CHUNKS where it comes in chunks, None where the head does not say."""
    head_end = data.find(b"\r\n\r\n", 0, READ_BYTES)
    if head_end < 0:
        return None
    head = bytes(data[:head_end]).lower()
    if CHUNKED in head:
        return CHUNKS
    _, _, length = head.partition(LENGTH)
    return head_end + 4 + int(length.split(b"\r\n", 1)[0]) if length else None


def _request(port: int, call: Call) -> bytes:
    body = orjson.dumps(call.body)
    lines = (
        f"POST {call.path} HTTP/1.1",
        f"host: 127.0.0.1:{port}",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@dataclass(slots=True)
class Told:
    """What a reply said, in seconds after the start.

    tokens  as its usage says, or one for each event with text
    first   when the first text was there; ``last`` when the last was
    """

    status: int = 0
    tokens: int = 0
    first: float | None = None
    last: float | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds of a token after the first; None where there is none."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)


def read_reply(reply: Reply) -> Told:
    """Reads a streamed completion, whole or cut short."""
    head, _, body = bytes(reply.data).partition(b"\r\n\r\n")
    told = Told(status=int(head[9:12] or 0))
    if told.status != 200 or CHUNKED not in head.lower():
        told.error = body[:200].decode("utf-8", "replace") or "no answer"
        return told
    told.error = None if reply.ended is not None else "not all of it came"
    texts = 0
    for moment, event in _events(body, len(head) + 4, reply.marks):
        texts += _take(told, moment, event)
    told.tokens = told.tokens or texts
    return told


def _take(told: Told, moment: float, event: dict[str, Any]) -> int:
    """Notes an event; whether it had text."""
    if "error" in event:
        told.error = str(event["error"])[:200]
    usage, choices = event.get("usage"), event.get("choices")
    if usage:
        told.tokens = usage["completion_tokens"]
    if not choices:
        return 0
    told.finish = choices[0].get("finish_reason") or told.finish
    if not choices[0].get("text"):
        return 0
    told.first = moment if told.first is None else told.first
    told.last = moment
    return 1


def _events(body: bytes, start: int, marks: Sequence[tuple[float, int]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Events of a chunked body that begins at byte ``start``, each with the moment at which it was all there."""
    text, seen = b"", iter(marks)
    moment, until = next(seen)
    for chunk, end in _chunks(body):
        while until < start + end:
            moment, until = next(seen)
        text += chunk
        *events, text = text.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = event.partition(b"data: ")[2]
            if data.startswith(b"{"):
                yield moment, orjson.loads(data)


def _chunks(body: bytes) -> Iterator[tuple[bytes, int]]:
    """The chunks that are whole, and where each ends."""
    at = 0
    while (line_end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:line_end], 16)
        begin = line_end + 2
        at = begin + size + 2
        if not size or at > len(body):
            return
        yield body[begin : begin + size], at
