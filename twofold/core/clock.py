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
