"""Reads one HTTP/1.1 response from bytes, however they are cut (RFC 9112).

    head → body by its length, in chunks, or until the connection ends → complete

Interim responses (1xx) are skipped. What is no HTTP raises ``ProtocolError``, and so does what is longer than the
limits. Body bytes are handed on as they come; only lines that are not whole yet are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_HEAD: Final = 64 * 1024
MAX_LINE: Final = 4096
MAX_TRAILERS: Final = 64 * 1024
HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ProtocolError(ValueError):
    """The bytes of a connection are not what HTTP, or the stream in it, says."""


class ResponseReader:
    """One response, fed with the bytes of a connection.

    status      None until its head has come
    headers     names in lower case; values of equal names are joined by ", "
    complete    nothing is missing any more
    keep_alive  whether the connection may be used again when it is complete
    """

    __slots__ = (
        "_chunked",
        "_closing",
        "_left",
        "_pending",
        "_trailers",
        "complete",
        "headers",
        "keep_alive",
        "status",
    )

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
        """Whether no byte of it has come."""
        return self.status is None and not self._pending

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body that ``data`` holds."""
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
        """The connection ended. Raises ProtocolError where that is before the response did."""
        if self.status is not None and not self._chunked and self._left is None:
            self.complete = True
        if not self.complete:
            raise ProtocolError("The connection ended before the response did.")

    def _head(self, data: bytes) -> bytes:
        """Reads the head if it is whole, and gives what follows it."""
        while (end := HEAD_END.search(data)) is not None:
            if end.start() > MAX_HEAD:
                break
            status = self._status_line(data[: end.start()])
            data = data[end.end() :]
            if status >= 200:
                self.status = status
                self._pending = b""
                self._frame(status)
                return data
            if status == 101:
                raise ProtocolError("The server changed to another protocol (status 101).")
        if len(data) > MAX_HEAD:
            raise ProtocolError(f"The head of the response is longer than {MAX_HEAD} bytes.")
        if not b"HTTP/1."[: len(data)] == data[:7]:
            raise ProtocolError("What the server sent is not an HTTP/1.1 response.")
        self._pending = data
        return b""

    def _status_line(self, head: bytes) -> int:
        line, _, rest = head.partition(b"\n")
        match = STATUS_LINE.fullmatch(line.rstrip(b"\r"))
        if match is None:
            raise ProtocolError("What the server sent is not an HTTP/1.1 response.")
        self.headers = _headers(rest)
        connection = [word.strip().lower() for word in self.headers.get("connection", "").split(",")]
        self.keep_alive = "close" not in connection and (match[1] == b"1" or "keep-alive" in connection)
        return int(match[2])

    def _frame(self, status: int) -> None:
        """How long the body is (RFC 9112, section 6.3)."""
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
        """Past the line end behind a chunk, if it is there."""
        end = data[at : at + 2]
        if not b"\r\n".startswith(end):
            raise ProtocolError("A chunk of the response exceeds its declared size.")
        if len(end) < 2:
            return at
        self._closing = False
        return at + 2

    def _line(self, data: bytes, at: int) -> int:
        """Past a chunk's size or a trailer, if its line is whole."""
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


def _one_chunk(data: bytes) -> bytes | None:
    """The body of ``data`` if it is exactly one chunk that is not the last: what a streaming server sends."""
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
    """Of a Content-Length, which may be there several times if all are equal."""
    values = {part.strip() for part in text.split(",")}
    value = values.pop()
    if values or not (value.isascii() and value.isdigit()) or len(value) > 15:
        raise ProtocolError("The Content-Length of the response is not a number.")
    return int(value)
