"""When bytes came: the kernel's word for it, on the clock of the run.

Linux tells with ``SO_TIMESTAMPNS`` when the last byte that a read returns had come (socket(7), and
Documentation/networking/timestamping.rst of the kernel). So a chunk's moment does not depend on when the client's
thread got to read it; what it lay there meanwhile is its *lag*. Where the kernel does not say it, the moment is that of
the read.

The kernel stamps by the wall clock, a run counts on the monotonic one. NTP slews both alike, so their difference stays
until somebody sets the clock; it is measured again ten times a second, and no moment is later than its read.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
import time
from array import array
from typing import Final, Literal

SO_TIMESTAMPNS: Final = 35
TIMESPEC: Final = struct.Struct("@qq")
SPACE: Final = 64
READ_SIZE: Final = 1 << 18
KEPT_LAGS: Final = 1 << 16
STAMPED_SHARE: Final = 0.99


class Stamps:
    """Reads sockets and says when what it read had come, in seconds after ``began`` (of ``time.perf_counter``)."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._view = memoryview(bytearray(READ_SIZE))
        self._buffers = [self._view]
        self._seconds = int(time.time())
        self._shift = 0.0
        self._lags = array("d")
        self._passed_over = 0
        self.reads = 0
        self.unstamped = 0
        self.align()

    def align(self) -> None:
        """Measures how far the wall clock is from the run's: the tightest of three looks."""
        self._thin()
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
        """Asks the kernel to stamp what comes on ``sock``; before it is connected, so that nothing is missed."""
        if sys.platform != "linux" or sys.maxsize < 1 << 32:
            return
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            return  # then its reads are unstamped, and counted as such

    def read(self, sock: socket.socket) -> tuple[bytes, float, float]:
        """What has come, the moment at which it had, and its lag. Raises what ``recv`` does."""
        size, extra, _, _ = sock.recvmsg_into(self._buffers, SPACE)
        now = time.perf_counter() - self._began
        if not size:
            return b"", now, 0.0
        self.reads += 1
        if extra and len(extra[0][2]) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(extra[0][2])
            moment = seconds - self._seconds + nanoseconds * 1e-9 + self._shift
            moment = min(moment, now)
        else:
            self.unstamped += 1
            moment = now
        lag = now - moment
        if not self.reads & self._passed_over:
            self._lags.append(lag)
        return bytes(self._view[:size]), moment, lag

    @property
    def source(self) -> Literal["kernel", "client"]:
        """Whose moments these are: the kernel's, if it stamped nearly all."""
        stamped = self.reads - self.unstamped
        return "kernel" if stamped and stamped >= STAMPED_SHARE * self.reads else "client"

    def lag(self, share: float) -> float:
        """Percentile (nearest rank) of how long what came lay in the kernel; 0 where nothing came."""
        if not self._lags:
            return 0.0
        return sorted(self._lags)[max(math.ceil(share * len(self._lags)), 1) - 1]

    def _thin(self) -> None:
        """Halves what is kept of the lags when it is too much: from then on, of every 2, 4, 8 … reads one is kept."""
        if len(self._lags) > KEPT_LAGS:
            self._lags = self._lags[::2]
            self._passed_over = 2 * self._passed_over + 1
