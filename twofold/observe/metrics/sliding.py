"""Sums and percentiles over a sliding window, which advances slot by slot.

A value is in bucket i where γ^(i−1) < value ≤ γ^i, with γ = (1 + α) / (1 − α), and is reported as 2 γ^i / (γ + 1), with
a relative error of at most α (DDSketch: Masson, Rim, Lee, VLDB 2019). With α = 1 % and values from 10 µs to a day there
are fewer than 1,200 buckets, so the memory of 30 slots is bounded, however many values they count; values outside count
as the nearest bound. The window covers between 29 and 30 slots of time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

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
"""A smaller sum is the rounding error of a sum whose parts were all subtracted again."""


class SlidingSums(Generic[K]):
    """Sums by key over the last ``window_s`` seconds. ``now`` never decreases."""

    def __init__(self, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        self._slot_s = window_s / slots
        self._slots: deque[tuple[int, dict[K, float]]] = deque()
        self._most = slots
        self._sums: dict[K, float] = {}

    def add(self, amounts: Mapping[K, float], now: float) -> None:
        self._forget(now)
        number = int(now / self._slot_s)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for key, amount in amounts.items():
            slot[key] = slot.get(key, 0.0) + amount
            self._sums[key] = self._sums.get(key, 0.0) + amount

    def sums(self, now: float) -> dict[K, float]:
        """A copy of the sums, without keys that have none in the window."""
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
    """Durations in the window, for percentiles."""

    _bucket = staticmethod(partial(bisect_left, BOUNDS))

    def __init__(self, window_s: float = WINDOW_S, slots: int = SLOTS) -> None:
        self._sums = SlidingSums[int](window_s, slots)

    def add(self, seconds: Iterable[float], now: float) -> None:
        self._sums.add(Counter(map(self._bucket, seconds)), now)

    def counts(self, now: float) -> dict[int, float]:
        """Values by bucket, for ``percentiles``."""
        return self._sums.sums(now)


def percentiles(counts: Mapping[int, float], shares: Sequence[float]) -> list[float]:
    """Seconds that these shares of the values do not exceed, within ERROR; empty without values.

    The value of a share q is the one of rank ⌈q · n⌉, as in numpy's ``inverted_cdf``.
    """
    if not counts:
        return []
    buckets = sorted(counts)
    upto = list(accumulate(round(counts[bucket]) for bucket in buckets))
    ranks = [max(1, ceil(share * upto[-1] - NOTHING)) for share in shares]
    found = (min(buckets[bisect_left(upto, rank)], len(BOUNDS) - 1) for rank in ranks)
    return [BOUNDS[bucket] * 2 / (GROWTH + 1) for bucket in found]
