"""Incremental readers of an HTTP/1.1 response (RFC 9112) and of server-sent events (WHATWG HTML, section 9.2).

    head → body by its length, in chunks, or until the connection ends → complete

Interim responses (1xx) are skipped. Bytes that are not HTTP, or exceed a limit, raise ``ProtocolError``. Bytes of the
body are returned as they arrive; only incomplete lines are kept. ``Flight`` reads the response to one request of a load
into its sample. This module uses no sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from twofold.bench.endpoints.endpoint import ApiEndpoint
from twofold.bench.endpoints.values import redirection, sentence
from twofold.bench.load.base import Outcome
from twofold.bench.record import RequestSample

MAX_HEAD: Final = 64 * 1024
MAX_LINE: Final = 4096
MAX_TRAILERS: Final = 64 * 1024
HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MAX_BODY: Final = 64 * 1024 * 1024
MAX_ERROR: Final = 64 * 1024
MAX_EVENT: Final = 8 * 1024 * 1024
LF: Final = 0x0A
BOM: Final = b"\xef\xbb\xbf"
REFUSALS: Final = frozenset({429, 503, 529})
"""Statuses of an overloaded server."""

Event: TypeAlias = tuple[str | None, bytes]
"""The name from the ``event:`` line, or None, and the data."""


class ProtocolError(ValueError):
    """The bytes of a response violate HTTP or the event stream format."""


class ResponseReader:
    """Reads one response from the bytes of a connection.

    status      None until the head is complete
    headers     names in lower case; values of equal names are joined by ", "
    complete    whether the response ended
    keep_alive  whether the connection may be reused after it
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.complete = False
        self.keep_alive = False
        self._pending = b""
        self._chunked = False
        self._left: int | None = 0
        self._closing = False
        self._trailers: int | None = None

    @property
    def untouched(self) -> bool:
        """Whether no byte was received."""
        return self.status is None and not self._pending

    def feed(self, data: bytes) -> bytes:
        """Reads ``data``; returns the bytes of the body in it. Raises ProtocolError."""
        if self._chunked and not self._pending and not self._left and not self._closing and self._trailers is None:
            body = _one_chunk(data)
            if body is not None:
                return body
        if self.status is None:
            data = self._head(self._pending + data)
            if self.status is None:
                return b""
        if self.complete:
            self.keep_alive = self.keep_alive and not data
            return b""
        return self._chunks(data) if self._chunked else self._plain(data)

    def end(self) -> None:
        """Call it when the connection has ended. Raises ProtocolError if the response is incomplete."""
        if self.status is not None and not self._chunked and self._left is None:
            self.complete = True
        if not self.complete:
            raise ProtocolError("The connection ended before the response was complete.")

    def _head(self, data: bytes) -> bytes:
        """Reads the head if it is complete; returns the bytes after it. Otherwise keeps the bytes for later."""
        while (end := HEAD_END.search(data)) is not None:
            if end.start() > MAX_HEAD:
                break
            status = self._status_line(data[: end.start()])
            data = data[end.end() :]
            if status >= 200:
                self.status = status
                self._pending = b""
                self._set_framing(status)
                return data
            if status == 101:
                raise ProtocolError("The server changed to another protocol (status 101).")
        if len(data) > MAX_HEAD:
            raise ProtocolError(f"The head of the response is longer than {MAX_HEAD} bytes.")
        if not b"HTTP/1."[: len(data)] == data[:7]:
            raise ProtocolError("The server did not send an HTTP/1.1 response.")
        self._pending = data
        return b""

    def _status_line(self, head: bytes) -> int:
        line, _, rest = head.partition(b"\n")
        match = STATUS_LINE.fullmatch(line.rstrip(b"\r"))
        if match is None:
            raise ProtocolError("The server did not send an HTTP/1.1 response.")
        self.headers = _headers(rest)
        connection = [word.strip().lower() for word in self.headers.get("connection", "").split(",")]
        self.keep_alive = "close" not in connection and (match[1] == b"1" or "keep-alive" in connection)
        return int(match[2])

    def _set_framing(self, status: int) -> None:
        """Determines the length of the body (RFC 9112, section 6.3)."""
        coding = self.headers.get("transfer-encoding")
        if status in {204, 304}:
            self.complete = True
        elif coding is not None:
            if coding.lower() != "chunked":
                raise ProtocolError("The response has a transfer coding other than chunked.")
            self._chunked = True
        elif "content-length" in self.headers:
            self._left = _length(self.headers["content-length"])
            self.complete = self._left == 0
        else:
            self._left = None
            self.keep_alive = False

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        body = data[: self._left]
        self.keep_alive = self.keep_alive and len(data) <= self._left
        self._left -= len(body)
        self.complete = not self._left
        return body

    def _chunks(self, data: bytes) -> bytes:
        data = self._pending + data if self._pending else data
        pieces: list[bytes] = []
        at, before = 0, -1
        while at != before and at < len(data) and not self.complete:
            before = at
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._closing = not self._left
            elif self._closing:
                at = self._close_chunk(data, at)
            else:
                at = self._line(data, at)
        self._pending = b"" if self.complete else data[at:]
        if self.complete and at < len(data):
            self.keep_alive = False
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _close_chunk(self, data: bytes, at: int) -> int:
        """The position after the line end of a chunk; ``at`` if the line end is incomplete."""
        end = data[at : at + 2]
        if not b"\r\n".startswith(end):
            raise ProtocolError("A chunk of the response exceeds its declared size.")
        if len(end) < 2:
            return at
        self._closing = False
        return at + 2

    def _line(self, data: bytes, at: int) -> int:
        """The position after the line of a chunk size or a trailer; ``at`` if the line is incomplete."""
        end = data.find(b"\r\n", at)
        if (len(data) if end < 0 else end) - at > MAX_LINE:
            raise ProtocolError("A line between chunks of the response is too long.")
        if end < 0:
            return at
        if self._trailers is None:
            match = SIZE_LINE.fullmatch(data, at, end)
            if match is None:
                raise ProtocolError("A chunk of the response has no size.")
            self._left = int(match[1], 16)
            self._trailers = None if self._left else 0
        elif end == at:
            self.complete = True
        else:
            self._trailers += end - at
            if self._trailers > MAX_TRAILERS:
                raise ProtocolError("The response has too many trailers.")
        return end + 2


class EventReader:
    """Events of one stream; lines end in LF, CRLF or CR.

    ``pings`` counts comments, which servers send to keep a connection alive. ``id`` and ``retry`` are for clients that
    reconnect, and are ignored.
    """

    def __init__(self) -> None:
        self.pings = 0
        self._pending = b""
        self._carriage = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that ``data`` completes. Raises ProtocolError for one longer than ``MAX_EVENT``."""
        if self._carriage or b"\r" in data:
            data = self._line_feeds(data)
        if self._pending:
            data = self._pending + data
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data[-1] == LF:
            self._pending = b""
            return [(None, data[6:-2])]  # one event of one line: nearly every read
        *blocks, self._pending = data.split(b"\n\n")
        if len(self._pending) > MAX_EVENT:
            raise ProtocolError(f"An event of the stream is longer than {MAX_EVENT} bytes.")
        events: list[Event] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((None, block[6:]))
            else:
                self._block(block, events)
        return events

    def end(self) -> list[Event]:
        """The last event of a stream that ended without an empty line: some servers omit it."""
        events: list[Event] = []
        self._block(self._pending, events)
        self._pending = b""
        return events

    def _line_feeds(self, data: bytes) -> bytes:
        """Converts line ends to LF. A CR at the end may be half of a CRLF: it ends the line, and the LF is dropped."""
        if self._carriage and data:
            data = data[1:] if data.startswith(b"\n") else data
            self._carriage = False
        self._carriage = self._carriage or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _block(self, block: bytes, events: list[Event]) -> None:
        name: str | None = None
        data: list[bytes] = []
        for line in block.removeprefix(BOM).split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif line.startswith(b":"):
                self.pings += 1
        if data:
            events.append((name, b"\n".join(data)))


def _one_chunk(data: bytes) -> bytes | None:
    """The body of ``data`` if it is exactly one chunk, but not the last: the usual case of a stream."""
    end = data.find(b"\r\n", 0, 20)
    size = data[:end]
    if end <= 0 or not size.isalnum() or not data.endswith(b"\r\n"):
        return None
    try:
        whole = end + int(size, 16) + 4 == len(data)
    except ValueError:
        return None
    return data[end + 2 : -2] if whole and len(data) > end + 4 else None


def _headers(lines: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines.split(b"\n") if lines else ():
        name, colon, value = line.partition(b":")
        if not colon or NAME.fullmatch(name) is None:
            raise ProtocolError("A header of the response has no name.")
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _length(text: str) -> int:
    """The value of Content-Length. Raises ProtocolError if it is repeated with different values, or not a number."""
    values = {part.strip() for part in text.split(",")}
    value = values.pop()
    if values or not (value.isascii() and value.isdigit()) or len(value) > 15:
        raise ProtocolError("The Content-Length of the response is not a number.")
    return int(value)


class Flight:
    """Reads the response to one request into its sample.

    file    descriptor of its connection; None after its end
    http    reader of its response
    resent  whether it was sent again because the server had closed a reused connection
    """

    def __init__(self, sample: RequestSample, request: bytes, endpoint: ApiEndpoint) -> None:
        self.sample = sample
        self.request = request
        self.file: int | None = None
        self.resent = False
        self.http = ResponseReader()
        self._reader = endpoint.reader(sample.response)
        self._events: EventReader | None = None
        self._body: list[bytes] = []
        self._size = 0

    def release(self) -> None:
        """Frees all memory but the sample, after the end of the request."""
        self.file = None
        self.request = b""
        self._body.clear()

    def feed(self, data: bytes, moment: float, lag: float) -> bool:
        """Reads bytes that arrived at ``moment``. Returns whether the response is complete.

        Raises ValueError if the response is invalid.
        """
        sample, http = self.sample, self.http
        sample.lag_s = max(sample.lag_s, lag)
        began = http.status is not None
        body = http.feed(data)
        if not began and http.status is not None:
            self._head(http.status)
        if body:
            if self._events is not None:
                self._stream(body, moment)
            else:
                self._collect(body, moment)
        if http.complete:
            self._complete(moment)
        return http.complete

    def end(self, moment: float) -> None:
        """Call it when the connection has ended. Raises ValueError if the response is incomplete."""
        self.http.end()
        self._complete(moment)

    def _head(self, status: int) -> None:
        headers = self.http.headers
        self.sample.status = status
        self.sample.request_id = headers.get("x-request-id") or headers.get("request-id")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ProtocolError("The server sent a compressed body that was not requested.")
        if status < 300 and "event-stream" in headers.get("content-type", ""):
            self._events = EventReader()

    def _stream(self, body: bytes, moment: float) -> None:
        events, response, reader = self._events, self.sample.response, self._reader
        assert events is not None
        before = len(response.moments)
        for name, data in events.feed(body):
            reader.event(name, data, moment)
        together = len(response.moments) - before
        if together > 1:
            self.sample.merged += together - 1

    def _collect(self, body: bytes, moment: float) -> None:
        """Keeps a body, or reads it as a stream: some servers do not send the content type of streams."""
        json = "json" in self.http.headers.get("content-type", "")
        if not (self._body or json) and self.sample.status == 200 and body.startswith((b"data:", b"event:", b":")):
            self._events = EventReader()
            self._stream(body, moment)
            return
        self._size += len(body)
        if self._size > MAX_BODY:
            raise ProtocolError(f"The body of the response is longer than {MAX_BODY} bytes.")
        self._body.append(body)

    def _complete(self, moment: float) -> None:
        sample, status = self.sample, self.sample.status
        sample.ended_s = moment
        assert status is not None
        if status >= 300:
            return
        if self._events is None:
            sample.response.streamed = False
            self._reader.whole(b"".join(self._body), moment)
            sample.response.done = sample.response.done or sample.response.error is None
            return
        for name, data in self._events.end():
            self._reader.event(name, data, moment)

    def settle(self, outcome: Outcome, error: str) -> None:
        """Sets an outcome that the client decided, such as a timeout; a complete response is "ok" anyway."""
        self._count_pings()
        response = self.sample.response
        if response.done and response.error is None:
            self.sample.outcome, self.sample.error = "ok", None
        else:
            self.sample.outcome, self.sample.error = outcome, error

    def judge(self) -> None:
        """Sets the outcome from the status and the body of the complete response."""
        self._count_pings()
        sample, status, response = self.sample, self.sample.status, self.sample.response
        assert status is not None
        if status >= 400:
            sample.outcome = "refused" if status in REFUSALS else "failed"
            body = b"".join(self._body)[:MAX_ERROR].strip()
            sample.error = sentence(body) if body else f"The server responded with status {status}."
        elif (moved := redirection(status, self.http.headers)) is not None:
            sample.outcome, sample.error = "failed", str(moved)
        elif response.error is not None:
            sample.outcome, sample.error = "failed", response.error
        elif response.done:
            sample.outcome, sample.error = "ok", None
        else:
            sample.outcome, sample.error = "broken", "The stream ended before the completion was finished."

    def _count_pings(self) -> None:
        if self._events is not None:
            self.sample.response.pings += self._events.pings
            self._events = None
