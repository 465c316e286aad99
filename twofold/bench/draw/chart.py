"""A chart: its marks and axes. ``svg`` and ``terminal`` draw it.

Points without a finite position on the scales are not drawn, and lines have a gap there. ``series`` selects a colour;
marks of a series belong together, and their ``label`` appears once in the legend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from twofold.bench.draw.form import number
from twofold.bench.draw.scale import Kind, Scale, fit, placeable

Point: TypeAlias = tuple[float, float]
Position = TypeVar("Position")


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
    """A dot for each point; ``titles``, one for each or none, are shown on hover."""

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
    """A line across the chart at a value of an axis, with a text: a limit."""

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
    """``form`` formats tick values; ``low`` and ``high`` fix the ends.

    ``tight``: the axis ends at the data's ends instead of round values. ``downwards``, of y: the low end is at the top.
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
    """``note`` is a sentence under the title."""

    title: str
    marks: tuple[Mark, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    note: str = ""

    def scales(self) -> tuple[Scale, Scale]:
        """Scales of x and y, on which every finite point has a position."""
        values = [_values(mark) for mark in self.marks]
        return self.x.scale([x for xs, _ in values for x in xs]), self.y.scale([y for _, ys in values for y in ys])

    def legend(self) -> Iterator[tuple[int, str, Mark]]:
        """Series, label and the first mark of each label, in their order."""
        seen: set[str] = set()
        for mark in self.marks:
            if not isinstance(mark, Guide | Label) and mark.label and mark.label not in seen:
                seen.add(mark.label)
                yield mark.series, mark.label, mark


def pieces(points: Iterable[Point], at: Callable[[float, float], Position | None]) -> Iterator[list[Position]]:
    """The positions of a curve's points by ``at``: a list for each piece between gaps."""
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
