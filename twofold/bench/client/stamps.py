"""Arrival times of bytes from the kernel, on the clock of the run.

With ``SO_TIMESTAMPNS`` Linux reports when the last byte of a read arrived (socket(7), and
Documentation/networking/timestamping.rst of the kernel), which does not depend on when the client's thread reads it.
The time from arrival to read is the *lag*. Without a timestamp, the time of the read is used.

The kernel uses the wall clock, a run the monotonic clock. NTP slews both alike, so their difference changes only when
the clock is set; it is measured ten times a second, and no arrival is later than its read.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from array import array
from typing import Final, Literal

from twofold.bench.metrics.distribution import nearest_rank

SO_TIMESTAMPNS: Final = 35
TIMESPEC: Final = struct.Struct("@qq")
SPACE: Final = 64
READ_SIZE: Final = 1 << 18
MAX_LAGS: Final = 1 << 16
STAMPED_SHARE: Final = 0.99


class Stamps:
    """Reads sockets with arrival times, in seconds after ``began`` (of ``time.perf_counter``)."""

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
        """Measures the difference between the wall clock and the run's: the most precise of three measurements."""
        if len(self._lags) > MAX_LAGS:  # from then on one of every 2, 4, 8 … reads is stored
            self._lags = self._lags[::2]
            self._passed_over = 2 * self._passed_over + 1
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
        if sys.platform != "linux" or sys.maxsize < 1 << 32:
            return
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            return  # its reads are then counted as unstamped

    def read(self, sock: socket.socket) -> tuple[bytes, float, float]:
        """Received bytes, their arrival time, and their lag. Raises what ``recv`` does."""
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
        """The source of arrival times: the kernel if it stamped nearly all reads."""
        stamped = self.reads - self.unstamped
        return "kernel" if stamped and stamped >= STAMPED_SHARE * self.reads else "client"

    def lag(self, share: float) -> float:
        """Percentile (nearest rank) of the lag; 0 without reads."""
        return nearest_rank(sorted(self._lags), share) if self._lags else 0.0
