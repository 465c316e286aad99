"""A TCP connection that never blocks, with TLS for https.

    closed → opening (TCP, then TLS) → open → closed

Bytes that the kernel does not take at once wait in ``unsent``. TLS runs over two buffers in memory, so that sockets are
read in the same way, with the kernel's timestamps, as without TLS.
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
    """TLS over buffers in memory."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, data: bytes = b"") -> bool:
        """Continues with bytes of the server; whether the handshake is complete. Raises ssl.SSLError."""
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
        """The plain text of ``data``, and whether the server closed its side."""
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
    """A connection and its request, if any.

    connecting    TCP is not connected yet
    opening       no request can be sent yet
    served        it received a complete response
    watches_room  whether the loop waits until the socket is writable
    """

    def __init__(self, address: Address, target: ServerTarget) -> None:
        """Starts to connect. Raises OSError if that fails at once."""
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
        """Continues when the socket is writable; whether nothing is left to send.

        Raises OSError if connecting failed.
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
        """The plain text of received bytes, and whether the server closed its side. Raises ssl.SSLError."""
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
        """Sends as much as the kernel accepts. Returns whether it accepted everything."""
        self._queue(data if self._tls is None else self._tls.encrypt(data))
        return self.flush()

    def _queue(self, data: bytes) -> None:
        self.unsent = memoryview(bytes(self.unsent) + data if self.unsent else data)

    def flush(self) -> bool:
        """Sends waiting bytes. Returns whether all were sent. After an error, a read shows whether a response came."""
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
