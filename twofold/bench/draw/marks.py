"""What a chart shows. A point without a finite place on its scales is left out, and a line has a hole there.

``series`` picks a colour; marks of one series belong together, and ``label`` puts it into the legend once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Point: TypeAlias = tuple[float, float]
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Line:
    """Straight from point to point."""

    points: Sequence[Point]
    label: str = ""
    series: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class StepLine:
    """Each point's y holds until the next point's x, as in a distribution function."""

    points: Sequence[Point]
    label: str = ""
    series: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dots:
    """A dot each; ``titles`` show on hover, one each or none at all."""

    points: Sequence[Point]
    label: str = ""
    series: int = 0
    titles: Sequence[str] = ()
    radius: float = 3.5


@dataclass(frozen=True, slots=True)
class Band:
    """Between two curves: (x, low y, high y)."""

    points: Sequence[tuple[float, float, float]]
    label: str = ""
    series: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """Upright bars from 0 (or the low end), centred at x; ``width`` in units of x."""

    points: Sequence[Point]
    width: float
    label: str = ""
    series: int = 0
    titles: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """From ``start`` to ``end`` along x in row ``row`` of y, which is one unit high; ``title`` shows on hover."""

    row: float
    start: float
    end: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of a timeline."""

    spans: Sequence[Span]
    label: str = ""
    series: int = 0


@dataclass(frozen=True, slots=True)
class Guide:
    """A line across the chart at one value of an axis, with a few words: a limit."""

    axis: Literal["x", "y"]
    value: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A few words beside a point; omitted where they would lie on others."""

    x: float
    y: float
    text: str


Mark: TypeAlias = Line | StepLine | Dots | Band | Bars | Spans | Guide | Label


def reach(mark: Mark) -> tuple[list[float], list[float]]:
    """The values that a mark has along x and y."""
    match mark:
        case Band():
            xs = [point[0] for point in mark.points]
            return xs, [y for point in mark.points for y in point[1:]]
        case Bars():
            half = mark.width / 2
            return [x + d for x, _ in mark.points for d in (-half, half)], [0.0, *(y for _, y in mark.points)]
        case Spans():
            xs = [x for span in mark.spans for x in (span.start, span.end)]
            return xs, [y for span in mark.spans for y in (span.row, span.row + 1)]
        case Label():
            return [mark.x], [mark.y]
        case Guide():
            return ([mark.value], []) if mark.axis == "x" else ([], [mark.value])
        case _:
            return [x for x, _ in mark.points], [y for _, y in mark.points]


def pieces(points: Iterable[Point], at: Callable[[float, float], Place | None]) -> Iterator[list[Place]]:
    """The places of a curve's points by ``at``: a list for each piece between its holes."""
    piece: list[Place] = []
    for x, y in points:
        place = at(x, y)
        if place is not None:
            piece.append(place)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece
