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
    """``rate`` arrivals a second; ``mean`` and ``square`` are the means of the service time and of its square."""

    rate: float
    mean: float
    square: float

    @property
    def busy(self) -> float:
        """ρ: utilization of the server."""
        return self.rate * self.mean

    @property
    def mean_wait(self) -> float:
        """Mean seconds before service begins; infinite for an overloaded server."""
        return self.rate * self.square / (2 * (1 - self.busy)) if self.busy < 1 else math.inf

    def waits_longer(self, seconds: float) -> float:
        """Share of arrivals that wait longer."""
        if self.busy >= 1:
            return 1.0
        if seconds < 0:
            return 1.0
        wait = self.mean_wait
        return self.busy * math.exp(-self.busy * seconds / wait) if wait else 0.0


def quantile(share: float, queue: Queue, after: Sequence[tuple[float, float]]) -> float:
    """Quantile of the wait together with the seconds that follow it; infinite for an overloaded server.

    ``after``: (share of arrivals, seconds that follow the wait).
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
