"""Waiting in a queue: one server, Poisson arrivals, first come first served.

mean wait     λ · E[S²] / (2 · (1 − ρ))              Pollaczek–Khinchine, exact
tail          P(W > t) ≈ ρ · e^(−ρ · t / mean wait)   exact where service times are exponential, else an estimate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HALVINGS: Final = 40


@dataclass(frozen=True, slots=True)
class Queue:
    """``rate`` arrivals a second whose service takes ``mean`` seconds, and ``square`` in the mean of its square."""

    rate: float
    mean: float
    square: float

    @property
    def busy(self) -> float:
        """ρ: the share of the time in which the server works."""
        return self.rate * self.mean

    @property
    def mean_wait(self) -> float:
        """Seconds before service begins; infinite where more comes than can be served."""
        return self.rate * self.square / (2 * (1 - self.busy)) if self.busy < 1 else math.inf

    def waits_longer(self, seconds: float) -> float:
        """The share of arrivals that wait longer."""
        if self.busy >= 1:
            return 1.0
        if seconds < 0:
            return 1.0
        wait = self.mean_wait
        return self.busy * math.exp(-self.busy * seconds / wait) if wait else 0.0


def quantile(share: float, queue: Queue, after: Sequence[tuple[float, float]]) -> float:
    """The seconds of wait and what follows it that ``share`` of the arrivals stay within.

    ``after``: (share of arrivals, seconds that follow the wait). Infinite where the queue is.
    """
    wait = queue.mean_wait
    if math.isinf(wait):
        return math.inf
    low, high = 0.0, max(seconds for _, seconds in after)
    if wait:
        high += wait / queue.busy * max(0.0, math.log(queue.busy / (1 - share)))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = sum(part * queue.waits_longer(middle - seconds) for part, seconds in after)
        low, high = (middle, high) if beyond > 1 - share else (low, middle)
    return high
