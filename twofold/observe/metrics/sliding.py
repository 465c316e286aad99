"""What happened in the last minutes: counts that are forgotten in slots, and percentiles of them.

A value lies in bucket i where γ^(i−1) < value ≤ γ^i, with γ = (1 + α) / (1 − α), and is given back as 2 γ^i / (γ + 1),
which is no further than α of the value away (DDSketch: Masson, Rim, Lee, VLDB 2019). With α = 1 % and values from
10 µs to a day there are fewer than 1,200 buckets, so a window of 30 slots has a bound, however many values it counts;
what lies outside is counted as the nearest bound. What is read covers between 29 and 30 slots of time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Final

WINDOW_S: Final = 300.0
SLOTS: Final = 30
ERROR: Final = 0.01
SHORTEST_S: Final = 1e-5
LONGEST_S: Final = 86_400.0
GROWTH: Final = (1 + ERROR) / (1 - ERROR)
BOUNDS: Final = tuple(
    SHORTEST_S * GROWTH**index for index in range(ceil(log(LONGEST_S / SHORTEST_S) / log(GROWTH)) + 1)
)
NOTHING: Final = 1e-9
"""Less is what rounding leaves of a sum whose parts were all taken away again."""


class SlidingSums:
    """Sums by key over the last ``window_s`` seconds. ``now`` never goes back."""

    def __init__(self, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        self._slot_s = window_s / slots
        self._slots: deque[tuple[int, dict[int, float]]] = deque()
        self._most = slots
        self._sums: dict[int, float] = {}

    def add(self, amounts: Mapping[int, float], now: float) -> None:
        self._forget(now)
        number = int(now / self._slot_s)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for key, amount in amounts.items():
            slot[key] = slot.get(key, 0.0) + amount
            self._sums[key] = self._sums.get(key, 0.0) + amount

    def sums(self, now: float) -> dict[int, float]:
        """A copy of the sums, without keys that were not heard of in the window."""
        self._forget(now)
        return self._sums.copy()

    def _forget(self, now: float) -> None:
        oldest = int(now / self._slot_s) - self._most + 1
        while self._slots and self._slots[0][0] < oldest:
            for key, amount in self._slots.popleft()[1].items():
                left = self._sums[key] - amount
                if left > NOTHING:
                    self._sums[key] = left
                else:
                    del self._sums[key]


class SlidingSeconds:
    """Durations of the last minutes, to take percentiles of."""

    _bucket = staticmethod(partial(bisect_left, BOUNDS))

    def __init__(self, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        self._sums = SlidingSums(window_s, slots)

    def add(self, seconds: Iterable[float], now: float) -> None:
        self._sums.add(Counter(map(self._bucket, seconds)), now)

    def counts(self, now: float) -> dict[int, float]:
        """How many lie in which bucket: what ``percentiles`` takes."""
        return self._sums.sums(now)


def percentiles(counts: Mapping[int, float], shares: Sequence[float]) -> list[float]:
    """Seconds that these shares of the values do not exceed, within ERROR; nothing where there are no values.

    The value of a share q is the one of rank ⌈q · n⌉, as in numpy's ``inverted_cdf``.
    """
    if not counts:
        return []
    buckets = sorted(counts)
    upto = list(accumulate(round(counts[bucket]) for bucket in buckets))
    ranks = [max(1, ceil(share * upto[-1] - NOTHING)) for share in shares]
    return [_seconds(buckets[bisect_left(upto, rank)]) for rank in ranks]


def _seconds(bucket: int) -> float:
    """What stands for the values of a bucket."""
    return BOUNDS[min(bucket, len(BOUNDS) - 1)] * 2 / (GROWTH + 1)
