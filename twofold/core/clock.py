"""Time as an argument, so that tests can use a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some fixed moment; never goes back."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock, at its best resolution."""

    def now(self) -> float:
        return time.perf_counter()


class VirtualClock:
    """A clock that moves only by ``advance``."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock forward; ``seconds`` must not be negative."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds
