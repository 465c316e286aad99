"""A clock for tests."""

from __future__ import annotations


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
