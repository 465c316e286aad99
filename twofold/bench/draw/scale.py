"""Linear and logarithmic scales with round ticks.

A scale maps a value to its share of the way from ``low`` to ``high``. Steps between ticks are 1, 2 or 5 times a power
of ten (Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["linear", "log"]

HUGE: Final = 1e100
"""Numbers beyond it, and closer to 0 than its inverse on a logarithmic scale, have no position."""

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MAX_DECADES_WITH_FIVES: Final = 3
_MIN_SPAN: Final = 1e-9


class Scale(Protocol):
    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    def share(self, value: float) -> float | None:
        """The share of a value: 0 at the low end, 1 at the high one; None without a position."""
        ...

    def ticks(self, most: int) -> tuple[float, ...]:
        """Round values between both ends, ascending; at most about ``most``."""
        ...


@dataclass(frozen=True, slots=True)
class LinearScale:
    low: float
    high: float

    def share(self, value: float) -> float | None:
        return (value - self.low) / (self.high - self.low) if abs(value) < HUGE else None

    def ticks(self, most: int) -> tuple[float, ...]:
        step = nice_step((self.high - self.low) / max(1, most))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(round(index * step, 12) if step > 1e-9 else index * step for index in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """Both ends are above 0; other values have no position."""

    low: float
    high: float

    def share(self, value: float) -> float | None:
        if not 1 / HUGE < value < HUGE:
            return None
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, most: int) -> tuple[float, ...]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = last - first
        between = (1.0, 2.0, 5.0) if decades <= _MAX_DECADES_WITH_FIVES and decades * 3 <= most + 3 else (1.0,)
        stride = max(1, math.ceil(decades / max(1, most)))
        values = (factor * 10.0**power for power in range(first, last + 1, stride) for factor in between)
        inside = tuple(value for value in values if self.low * 0.999999 <= value <= self.high * 1.000001)
        return inside or (self.low, self.high)


def nice_step(rough: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that is at least ``rough``, which is above 0."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in _STEPS if step * power >= rough * 0.999999), 10 * power)


def fit(kind: Kind, values: Iterable[float], low: float | None, high: float | None, ticks: int = 6) -> Scale:
    """A scale with round ends on which all finite values have positions; ``low`` and ``high`` fix an end."""
    found = placeable(kind, values)
    return _fit_log(found, low, high) if kind == "log" else _fit_linear(found, low, high, ticks)


def placeable(kind: Kind, values: Iterable[float]) -> list[float]:
    """The values that have a position on a scale of that kind."""
    if kind == "log":
        return [value for value in values if 1 / HUGE < value < HUGE]
    return [value for value in values if abs(value) < HUGE]


def _fit_linear(values: list[float], low: float | None, high: float | None, ticks: int) -> LinearScale:
    start = min(values, default=0.0 if high is None else high - 1) if low is None else low
    end = max(values, default=start + 1) if high is None else high
    if end - start <= _MIN_SPAN * max(abs(start), abs(end)):  # one value, or a fixed end beyond all values
        room = abs(start) or 1.0
        start, end = (start - room, end) if low is None and high is not None else (start, start + room)
    step = nice_step(max((end - start) / max(1, ticks), 1 / HUGE))
    nice_low = math.floor(start / step + 1e-9) * step if low is None else start
    nice_high = math.ceil(end / step - 1e-9) * step if high is None else end
    return LinearScale(nice_low, nice_high if nice_high > nice_low else nice_low + step)


def _fit_log(values: list[float], low: float | None, high: float | None) -> Logarithmic:
    least = min(values, default=1.0)
    power = 10.0 ** math.floor(math.log10(least))
    nice_low = max(step * power for step in _STEPS if step * power <= least * 1.000001)
    start = low if low is not None and low > 0 else nice_low
    end = high if high is not None and high > 0 else nice_step(max(values, default=start * 10))
    return Logarithmic(start, end if end > start else start * 10)
