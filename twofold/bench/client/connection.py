"""One TCP connection that never blocks, with TLS where the server wants it.

    closed → opening (TCP, then TLS) → open → closed

What is sent goes to the kernel as far as it takes it; the rest waits in ``unsent`` until there is room. TLS runs over
two buffers in memory, so that reads are the same raw ones, with the kernel's moments, as without it.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl

from twofold.bench.client.flight import Flight
from twofold.bench.client.stamps import Stamps
from twofold.bench.client.target import Address, ServerTarget

PENDING = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY})
RECORD = 1 << 16


class Tls:
    """The TLS side of a connection: cipher text in and out, by way of memory."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, data: bytes = b"") -> bool:
        """Goes on with what the server said; whether both sides agree now. Raises ssl.SSLError."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def to_send(self) -> bytes:
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """The plain text of ``data``, and whether the server said that nothing follows."""
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._object.read(RECORD):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(pieces), False
        except ssl.SSLZeroReturnError:
            pass
        return b"".join(pieces), True


class Connection:
    """A connection and the request that is on it, if there is one.

    connecting    the other side has not answered yet
    opening       no request can be sent yet
    served        a request was answered on it
    watches_room  whether the loop waits until it can be written
    """

    __slots__ = (
        "_tls",
        "began_s",
        "connecting",
        "file",
        "flight",
        "opening",
        "served",
        "socket",
        "unsent",
        "watches_room",
    )

    def __init__(self, address: Address, target: ServerTarget) -> None:
        """Begins to connect. Raises OSError where that fails at once."""
        self.flight: Flight | None = None
        self.began_s = 0.0
        self.connecting = self.opening = self.watches_room = True
        self.served = False
        self.unsent = memoryview(b"")
        self._tls = Tls(target.tls, target.host) if target.tls is not None else None
        family, where = address
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.file = self.socket.fileno()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Stamps.enable(self.socket)
        code = self.socket.connect_ex(where)
        if code and code not in PENDING:
            self.socket.close()
            raise OSError(code, os.strerror(code))

    def writable(self) -> bool:
        """The socket takes bytes: it is connected, or there is room again. Whether nothing is left to send.

        Raises OSError where it could not be connected.
        """
        if self.connecting:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.connecting = False
            if self._tls is None:
                self.opening = False
            else:
                self._tls.handshake()
                self._queue(self._tls.to_send())
        return self.flush()

    def received(self, data: bytes) -> tuple[bytes, bool]:
        """The plain text of what was read, and whether the server ended its side. Raises ssl.SSLError."""
        if self._tls is None or not data:
            return data, not data
        if not self.opening:
            return self._tls.decrypt(data)
        try:
            self.opening = not self._tls.handshake(data)
        finally:
            self._queue(self._tls.to_send())
            self.flush()
        return b"", False

    def send(self, data: bytes) -> bool:
        """Sends what the kernel takes now; whether that was all."""
        self._queue(data if self._tls is None else self._tls.encrypt(data))
        return self.flush()

    def _queue(self, data: bytes) -> None:
        self.unsent = memoryview(bytes(self.unsent) + data if self.unsent else data)

    def flush(self) -> bool:
        """Sends what waits; whether that was all. A server that reads no more may have answered: reading tells."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self.unsent = memoryview(b"")
            return False
        return True

    def close(self) -> None:
        self.socket.close()
