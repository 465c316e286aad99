"""One request whose answer is read while it comes: for a person, not for a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from socket import socket
from typing import Final

from twofold.bench.client.events import Event, EventReader
from twofold.bench.client.exchange import CONNECT_S, MAX_BODY, connect, reachable, secured
from twofold.bench.client.failures import network_error
from twofold.bench.client.request import JSON, head, lowered
from twofold.bench.client.response import ProtocolError, ResponseReader
from twofold.bench.client.target import ServerTarget

LOOK_S: Final = 0.1
"""How often a silent connection is left to see whether the caller still wants the answer."""
SILENCE_S: Final = 900.0
"""The server may have to load the model first."""


class Streamed:
    """A response whose head has come. ``status`` is None where the caller stopped before that."""

    def __init__(self, sock: socket, stopped: Callable[[], bool]) -> None:
        self._sock = sock
        self._stopped = stopped
        self._response = ResponseReader()
        self._pieces = self._received()
        self._first = b""
        for piece in self._pieces:
            self._first = piece
            if self._response.status is not None:
                break

    @property
    def status(self) -> int | None:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def body(self) -> bytes:
        """All of it. Raises NetworkError's causes: OSError, EOFError, ProtocolError."""
        whole = self._first
        for piece in self._pieces:
            whole += piece
            if len(whole) > MAX_BODY:
                raise ProtocolError(f"The body of the response is longer than {MAX_BODY} bytes.")
        return whole

    def events(self) -> Iterator[Event]:
        """Server-sent events as they come, until the end or until the caller stops."""
        reader = EventReader()
        yield from reader.feed(self._first)
        for piece in self._pieces:
            yield from reader.feed(piece)
        yield from reader.end()

    def _received(self) -> Iterator[bytes]:
        """Bytes of the body, some of them empty while the head comes."""
        self._sock.settimeout(LOOK_S)
        heard = time.monotonic()
        while not self._response.complete and not self._stopped():
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() - heard > SILENCE_S:
                    raise
                continue
            heard = time.monotonic()
            if not data:
                if self._response.status is None:
                    raise EOFError
                self._response.end()
                return
            yield self._response.feed(data)


@contextmanager
def streamed(
    target: ServerTarget, path: str, body: bytes, headers: Mapping[str, str], stopped: Callable[[], bool]
) -> Iterator[Streamed]:
    """Posts ``body``, and closes the connection in the end, which ends the request.

    Raises NetworkError where the connection fails, also while the answer is read.
    """
    start = head(target, "POST", path, {**JSON, **lowered(headers), "connection": "close"})
    tls = target.tls
    address = reachable(target)
    try:
        with secured(connect(address, CONNECT_S), tls, target.host) as sock:
            sock.sendall(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (start, len(body), body))
            yield Streamed(sock, stopped)
    except (OSError, EOFError, ProtocolError) as error:
        raise network_error(error, target) from error
