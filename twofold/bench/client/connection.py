"""A TCP connection that never blocks, with TLS for https, and arrival times of bytes from the kernel.

    closed → opening (TCP, then TLS) → open → closed

Bytes that the kernel does not take at once wait in ``unsent``. TLS runs over two buffers in memory, so that sockets are
read in the same way, with the kernel's timestamps, as without TLS.

With ``SO_TIMESTAMPNS`` Linux reports when the last byte of a read arrived (socket(7), and
Documentation/networking/timestamping.rst of the kernel), which does not depend on when the client's thread reads it.
The time from arrival to read is the *lag*. Without a timestamp, the time of the read is used. The kernel uses the wall
clock, the run the monotonic clock. NTP slews both alike, so their difference changes only when the clock is set. The
difference is measured ten times a second, and no arrival time is later than its read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import sys
import time
from array import array
from typing import Final, Literal

from twofold.bench.client.response import Flight
from twofold.bench.client.target import Address, ServerTarget
from twofold.core.ranks import nearest_rank

SO_TIMESTAMPNS: Final = 35
TIMESPEC: Final = struct.Struct("@qq")
SPACE: Final = 64
READ_SIZE: Final = 1 << 18
MAX_LAGS: Final = 1 << 16
STAMPED_SHARE: Final = 0.99
PENDING: Final = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY})
RECORD: Final = 1 << 16
SHORT_S: Final = 0.002
MAX_EVENTS: Final = 256
SELECTABLE: Final = 1024


class Stamps:
    """Reads sockets with arrival times, in seconds after ``began``, a time of ``time.perf_counter``."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._view = memoryview(bytearray(READ_SIZE))
        self._buffers = [self._view]
        self._seconds = int(time.time())
        self._shift = 0.0
        self._lags = array("d")
        self._skip_mask = 0
        self.reads = 0
        self.unstamped = 0
        self.align()

    def align(self) -> None:
        """Measures the difference between the wall clock and the run's clock: the most precise of three results."""
        if len(self._lags) > MAX_LAGS:  # from then on one of every 2, 4, 8 … reads is stored
            self._lags = self._lags[::2]
            self._skip_mask = 2 * self._skip_mask + 1
        widths = []
        for _ in range(3):
            before = time.perf_counter()
            wall = time.time_ns()
            after = time.perf_counter()
            widths.append((after - before, (before + after) / 2, wall))
        _, middle, wall = min(widths)
        self._shift = (middle - self._began) - (wall - self._seconds * 1_000_000_000) * 1e-9

    @property
    def began_unix(self) -> float:
        """Wall-clock time of the start."""
        return self._seconds - self._shift

    @staticmethod
    def enable(sock: socket.socket) -> None:
        """Enables timestamps on ``sock``; call it before connecting."""
        if sys.platform == "linux" and sys.maxsize > 1 << 32:
            with contextlib.suppress(OSError):  # reads are counted as unstamped
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def read(self, sock: socket.socket) -> tuple[bytes, float, float]:
        """Received bytes, their arrival time, and their lag. Raises OSError."""
        size, extra, _, _ = sock.recvmsg_into(self._buffers, SPACE)
        now = time.perf_counter() - self._began
        if not size:
            return b"", now, 0.0
        self.reads += 1
        if extra and len(extra[0][2]) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(extra[0][2])
            moment = min(now, seconds - self._seconds + nanoseconds * 1e-9 + self._shift)
        else:
            self.unstamped += 1
            moment = now
        lag = now - moment
        if not self.reads & self._skip_mask:
            self._lags.append(lag)
        return bytes(self._view[:size]), moment, lag

    @property
    def source(self) -> Literal["kernel", "client"]:
        """The source of arrival times: the kernel if it stamped nearly all reads."""
        stamped = self.reads - self.unstamped
        return "kernel" if stamped and stamped >= STAMPED_SHARE * self.reads else "client"

    def lag(self, share: float) -> float:
        """Percentile (nearest rank) of the lag; 0 without reads."""
        return nearest_rank(sorted(self._lags), share) if self._lags else 0.0


class Tls:
    """TLS over buffers in memory."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, data: bytes = b"") -> bool:
        """Continues with bytes of the server. Returns whether the handshake is complete. Raises ssl.SSLError."""
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
    """A connection, and the request on it, if any.

    connecting      TCP is not connected yet
    opening         no request can be sent yet: TCP or TLS is not ready
    served          it received a complete response
    waits_writable  the loop waits until the socket is writable
    """

    def __init__(self, address: Address, target: ServerTarget) -> None:
        """Starts to connect. Raises OSError if that fails at once."""
        self.flight: Flight | None = None
        self.began_s = 0.0
        self.connecting = self.opening = self.waits_writable = True
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
        """Call it when the socket is writable. Continues to connect or send; returns whether nothing is left to send.

        Raises OSError if the connection failed.
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
        return self._flush()

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
            self._flush()
        return b"", False

    def send(self, data: bytes) -> bool:
        """Sends as much as the kernel accepts. Returns whether it accepted everything."""
        self._queue(data if self._tls is None else self._tls.encrypt(data))
        return self._flush()

    def _queue(self, data: bytes) -> None:
        self.unsent = memoryview(bytes(self.unsent) + data if self.unsent else data)

    def _flush(self) -> bool:
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


class Readiness:
    """Waits for files with sub-millisecond precision.

    Uses ``epoll`` on Linux and ``poll`` elsewhere, whose timeouts are in milliseconds. So the last part of a wait is
    a ``select`` on epoll's own file; if that is impossible, ``wait`` returns at once and is called again.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._poll = select.poll()

    def add(self, file: int, mask: int) -> None:
        (self._epoll or self._poll).register(file, mask)

    def change(self, file: int, mask: int) -> None:
        (self._epoll or self._poll).modify(file, mask)

    def remove(self, file: int) -> None:
        """Call it before the file is closed."""
        (self._epoll or self._poll).unregister(file)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Ready files and their events, as soon as one is ready; empty after at most ``seconds``."""
        whole_ms = int(seconds * 1000) if seconds >= SHORT_S else 0
        if self._epoll is None:
            return self._poll.poll(whole_ms)
        if 0 < seconds < SHORT_S and self._epoll.fileno() < SELECTABLE:
            select.select([self._epoll], (), (), seconds)
        # epoll rounds up to milliseconds, so half of one is subtracted
        return self._epoll.poll((whole_ms - 0.5) / 1000 if whole_ms else 0, MAX_EVENTS)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
