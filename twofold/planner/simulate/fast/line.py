"""Steps whose seconds lie on a line: how many do, how long they take together, how many begin in a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from twofold.planner.simulate.steps import StepSeconds, StepSize

STRAIGHT: Final = 1e-6
"""A step's seconds may be off the line by this share."""


def stretch(seconds: StepSeconds, size: Callable[[int], StepSize], steps: int) -> tuple[float, float, int]:
    """Seconds of the first step, what each later one takes more, and for how many steps that holds.

    The first, the last and the middle one are looked at: enough where the seconds are convex or concave.
    """
    first = seconds(size(0))
    while steps > 1:
        slope = (seconds(size(steps - 1)) - first) / (steps - 1)
        middle = steps // 2
        off = seconds(size(middle)) - (first + slope * middle) if steps > 2 else 0.0
        if abs(off) <= STRAIGHT * first:
            return first, slope, steps
        steps = (steps + 1) // 2
    return first, 0.0, 1


class Lines:
    """Seconds of steps in which each of ``count`` sequences generates, where they are a line in the positions seen.

    Looked at once for each count, at some places between none and ``most`` positions.
    """

    def __init__(self, seconds: StepSeconds, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._found: dict[int, tuple[float, float] | None] = {}

    def of(self, count: int) -> tuple[float, float] | None:
        """Seconds without any position, and what one position adds; None where these are no line."""
        if count not in self._found:
            self._found[count] = self._look(count)
        return self._found[count]

    def _look(self, count: int) -> tuple[float, float] | None:
        def at(seen: int) -> float:
            return self._seconds(StepSize(count, count, count, (seen,), (seen,)))

        least = at(count)
        each = (at(max(self._most, 2 * count)) - least) / (max(self._most, 2 * count) - count)
        for seen in (self._most // part + count for part in (2, 8, 64, 512)):
            if abs(at(seen) - (least + (seen - count) * each)) > STRAIGHT * least:
                return None
        return least - count * each, each


def steps_begun(time_s: float, first: float, slope: float, most: int) -> int:
    """How many of ``most`` steps begin before ``time_s`` is over; at least one.

    The k-th begins at k · first + slope · k · (k − 1) / 2.
    """
    if time_s == math.inf or most == 1 or first <= 0:
        return most
    steps = time_s / first
    if steps < most or slope < 0:
        half = slope / 2
        linear = first - half
        root = linear * linear + 4 * half * time_s
        if half and root >= 0:
            steps = 2 * time_s / (linear + math.sqrt(root))
    begun = min(most, max(1, math.ceil(steps)))
    while begun > 1 and (begun - 1) * first + slope * ((begun - 1) * (begun - 2) / 2) >= time_s:
        begun -= 1
    while begun < most and begun * first + slope * (begun * (begun - 1) / 2) < time_s:
        begun += 1
    return begun
