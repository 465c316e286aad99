"""A chart: its marks, axes and scales. ``svg`` and ``terminal`` draw charts.

Points without a finite position on the scales are not drawn, and lines have gaps there. ``series`` selects a colour.
Marks with the same ``label`` belong together: the legend contains the label once.

A scale maps a value to its share of the way from ``low`` to ``high``, linearly or by logarithms. Steps between ticks
are 1, 2 or 5 times a power of ten (Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from twofold.bench.draw.form import number

Kind: TypeAlias = Literal["linear", "log"]
Point: TypeAlias = tuple[float, float]
Position = TypeVar("Position")

HUGE: Final = 1e100
"""Numbers with a larger magnitude have no position, and on a logarithmic scale numbers below 1 / HUGE."""

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MAX_DECADES_WITH_FIVES: Final = 3
_MIN_SPAN: Final = 1e-9


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A linear scale from ``low`` to ``high``."""

    low: float
    high: float

    def share(self, value: float) -> float | None:
        """The position of a value: 0 at ``low``, 1 at ``high``; None if the value is too large."""
        return (value - self.low) / (self.high - self.low) if abs(value) < HUGE else None

    def ticks(self, limit: int) -> tuple[float, ...]:
        """Round values between both ends, ascending; ``limit`` is their approximate maximum number."""
        step = nice_step((self.high - self.low) / max(1, limit))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(round(index * step, 12) if step > 1e-9 else index * step for index in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic scale. Both ends are above 0; values of 0 and below have no position."""

    low: float
    high: float

    def share(self, value: float) -> float | None:
        if not 1 / HUGE < value < HUGE:
            return None
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, limit: int) -> tuple[float, ...]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = last - first
        between = (1.0, 2.0, 5.0) if decades <= _MAX_DECADES_WITH_FIVES and decades * 3 <= limit + 3 else (1.0,)
        stride = max(1, math.ceil(decades / max(1, limit)))
        values = (factor * 10.0**power for power in range(first, last + 1, stride) for factor in between)
        inside = tuple(value for value in values if self.low * 0.999999 <= value <= self.high * 1.000001)
        return inside or (self.low, self.high)


Scale: TypeAlias = LinearScale | LogScale


def nice_step(rough: float) -> float:
    """The smallest of 1, 2 and 5 times powers of ten that is at least ``rough``, which is above 0."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in _STEPS if step * power >= rough * 0.999999), 10 * power)


def fit(kind: Kind, values: Iterable[float], low: float | None, high: float | None, ticks: int = 6) -> Scale:
    """A scale with round ends that contains all finite values; ``low`` and ``high`` fix an end."""
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


def _fit_log(values: list[float], low: float | None, high: float | None) -> LogScale:
    lowest = min(values, default=1.0)
    power = 10.0 ** math.floor(math.log10(lowest))
    nice_low = max(step * power for step in _STEPS if step * power <= lowest * 1.000001)
    start = low if low is not None and low > 0 else nice_low
    end = high if high is not None and high > 0 else nice_step(max(values, default=start * 10))
    return LogScale(start, end if end > start else start * 10)


@dataclass(frozen=True, slots=True)
class Line:
    """Straight lines from point to point."""

    points: Sequence[Point]
    label: str = ""
    series: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class StepLine(Line):
    """Steps: each point's y holds until the next point's x, as in a distribution function."""


@dataclass(frozen=True, slots=True)
class Dots:
    """A dot for each point. ``titles`` are shown on hover; there is one for each point, or none."""

    points: Sequence[Point]
    label: str = ""
    series: int = 0
    titles: Sequence[str] = ()
    radius: float = 3.5


@dataclass(frozen=True, slots=True)
class Span:
    """A bar from ``start`` to ``end`` along x in row ``row`` of y, one unit high; ``title`` is shown on hover."""

    row: float
    start: float
    end: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Spans:
    """Bars of a timeline."""

    spans: Sequence[Span]
    label: str = ""
    series: int = 0


@dataclass(frozen=True, slots=True)
class Guide:
    """A line across the chart at a value of an axis, with a text, for example for a limit."""

    axis: Literal["x", "y"]
    value: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside a point; omitted if it would overlap others."""

    x: float
    y: float
    text: str


Mark: TypeAlias = Line | Dots | Spans | Guide | Label


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. ``form`` formats tick values; ``low`` and ``high`` fix its ends.

    ``tight``: the axis ends where the data end, not at round values. ``downwards``: the low end of y is at the top.
    """

    label: str = ""
    kind: Kind = "linear"
    form: Callable[[float], str] = number
    low: float | None = None
    high: float | None = None
    ticks: int = 6
    tight: bool = False
    downwards: bool = False

    def scale(self, values: list[float]) -> Scale:
        """A scale for all finite values."""
        low, high = self.low, self.high
        if self.tight:
            found = placeable(self.kind, values)
            low = min(found, default=None) if low is None else low
            high = max(found, default=None) if high is None else high
        return fit(self.kind, values, low, high, self.ticks)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. ``note`` is a sentence under the title."""

    title: str
    marks: tuple[Mark, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    note: str = ""

    def scales(self) -> tuple[Scale, Scale]:
        """The scales of x and y, which contain every finite point."""
        values = [_values(mark) for mark in self.marks]
        return self.x.scale([x for xs, _ in values for x in xs]), self.y.scale([y for _, ys in values for y in ys])

    def document(self) -> dict[str, Any]:
        """As plain data, for another program that draws it. ``form`` names the format of an axis' values; numbers that
        JSON lacks are null, at which lines have gaps."""
        axes = {name: asdict(axis) | {"form": axis.form.__name__} for name, axis in (("x", self.x), ("y", self.y))}
        marks = [{"mark": type(mark).__name__, **_plain(asdict(mark))} for mark in self.marks]
        return {"title": self.title, "note": self.note, **axes, "marks": marks}

    def legend(self) -> Iterator[tuple[int, str, Mark]]:
        """Series, label and first mark of each label, in the order of marks."""
        seen: set[str] = set()
        for mark in self.marks:
            if not isinstance(mark, Guide | Label) and mark.label and mark.label not in seen:
                seen.add(mark.label)
                yield mark.series, mark.label, mark


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def pieces(points: Iterable[Point], at: Callable[[float, float], Position | None]) -> Iterator[list[Position]]:
    """The positions of the points of a curve, converted by ``at``: a list for each piece between gaps."""
    piece: list[Position] = []
    for x, y in points:
        position = at(x, y)
        if position is not None:
            piece.append(position)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _values(mark: Mark) -> tuple[list[float], list[float]]:
    """The values of a mark along x and y."""
    match mark:
        case Spans():
            xs = [x for span in mark.spans for x in (span.start, span.end)]
            return xs, [y for span in mark.spans for y in (span.row, span.row + 1)]
        case Label():
            return [mark.x], [mark.y]
        case Guide():
            return ([mark.value], []) if mark.axis == "x" else ([], [mark.value])
        case _:
            return [x for x, _ in mark.points], [y for _, y in mark.points]
