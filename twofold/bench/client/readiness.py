"""Waits until sockets can be read or written, for a time exact to fractions of a millisecond.

``epoll`` on Linux, ``poll`` elsewhere; both count in milliseconds. So the last of a wait is done by ``select`` over the
one file that epoll itself is, and by looking again and again where that cannot be.
"""

from __future__ import annotations

import select
import sys
from typing import Final

IN: Final = select.POLLIN
OUT: Final = select.POLLOUT
"""Of the same value in poll and epoll."""

SHORT_S: Final = 0.002
MOST_EVENTS: Final = 256
SELECTABLE: Final = 1024


class Readiness:
    """The files that are waited for, and for what."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._poll = select.poll()

    def add(self, file: int, mask: int) -> None:
        (self._epoll or self._poll).register(file, mask)

    def change(self, file: int, mask: int) -> None:
        (self._epoll or self._poll).modify(file, mask)

    def remove(self, file: int) -> None:
        """Before the file is closed."""
        (self._epoll or self._poll).unregister(file)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Which files are ready and for what, as soon as one is, or after ``seconds``."""
        whole_ms = int(seconds * 1000) if seconds >= SHORT_S else 0
        if self._epoll is None:
            return self._poll.poll(whole_ms)
        if 0 < seconds < SHORT_S and self._epoll.fileno() < SELECTABLE:
            select.select([self._epoll], (), (), seconds)
        # epoll rounds up to milliseconds; half of one less comes out at as many as are meant
        return self._epoll.poll((whole_ms - 0.5) / 1000 if whole_ms else 0, MOST_EVENTS)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
