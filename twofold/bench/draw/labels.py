"""Where the words of guides and labels go: of some places near each, the one that covers the least of the curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, inf
from typing import Final, TypeAlias

from twofold.bench.draw.layout import Layout, text_width
from twofold.bench.draw.marks import Dots, Guide, Label, Line, Mark, StepLine, pieces
from twofold.bench.draw.thin import Place, thin

Segment: TypeAlias = tuple[Place, Place]

_SIZE: Final = 12.0
_ASCENT: Final = 10.0
_DESCENT: Final = 3.0
_OVERLAP: Final = 1e3
"""Cost of words over other words, or of a pixel outside of the plot; of a pixel of a curve it is 1."""
_LATER: Final = 2.0
"""Cost of each place that would be preferred: words stay where they are expected unless much is gained."""
_DROPS: Final = (-7.0, 16.0, -21.0, 30.0, -35.0, 44.0)
"""Of a label's baseline under its point."""


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A text with its baseline at ``y``; ``x`` is its left end, or with ``to_left`` its right end."""

    x: float
    y: float
    text: str
    to_left: bool = False

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        width = text_width(self.text, _SIZE)
        left = self.x - width if self.to_left else self.x
        return left, self.y - _ASCENT, left + width, self.y + _DESCENT


def labels(marks: Iterable[Mark], layout: Layout) -> Iterator[PlacedText]:
    """The words of guides, then of labels. A label that would lie on other words is omitted."""
    found = list(marks)
    guides: list[Guide | Label] = [mark for mark in found if isinstance(mark, Guide) and mark.text]
    curves = [segment for mark in found for segment in _segments(mark, layout)]
    taken: list[PlacedText] = []
    for mark in guides + [mark for mark in found if isinstance(mark, Label)]:
        places = list(_beside_guide(mark, layout) if isinstance(mark, Guide) else _beside_point(mark, layout))
        costs = [_cost(words, layout, curves, taken) + _LATER * rank for rank, words in enumerate(places)]
        least = min(costs, default=inf)
        if least < _OVERLAP or (places and isinstance(mark, Guide)):
            taken.append(places[costs.index(least)])
            yield taken[-1]


def _beside_guide(mark: Guide, layout: Layout) -> Iterator[PlacedText]:
    """At its ends, on both sides."""
    if mark.axis == "x" and (x := layout.at_x(mark.value)) is not None:
        for baseline in (layout.top + 11, layout.bottom - 6, (layout.top + layout.bottom) / 2):
            yield PlacedText(x + 5, baseline, mark.text)
            yield PlacedText(x - 5, baseline, mark.text, to_left=True)
    elif mark.axis == "y" and (y := layout.at_y(mark.value)) is not None:
        for drop in (-4, 13):
            yield PlacedText(layout.right - 4, y + drop, mark.text, to_left=True)
            yield PlacedText(layout.left + 4, y + drop, mark.text)
            yield PlacedText((layout.left + layout.right) / 2, y + drop, mark.text)


def _beside_point(mark: Label, layout: Layout) -> Iterator[PlacedText]:
    if (place := layout.at(mark.x, mark.y)) is not None:
        for drop in _DROPS:
            yield PlacedText(place[0] + 9, place[1] + drop, mark.text)
            yield PlacedText(place[0] - 9, place[1] + drop, mark.text, to_left=True)


def _segments(mark: Mark, layout: Layout) -> Iterator[Segment]:
    """What words should not cover, as straight lines; a dot is its diameter."""
    if isinstance(mark, Line | StepLine):
        for piece in pieces(mark.points, layout.at):
            for (x0, y0), (x1, y1) in pairwise(thin(piece)):
                corner = (x1, y0) if isinstance(mark, StepLine) else (x0, y0)
                yield (x0, y0), corner
                yield corner, (x1, y1)
    elif isinstance(mark, Dots):
        for place in (layout.at(*point) for point in mark.points):
            if place is not None:
                yield (place[0] - mark.radius, place[1]), (place[0] + mark.radius, place[1])
    elif isinstance(mark, Guide) and mark.axis == "x" and (x := layout.at_x(mark.value)) is not None:
        yield (x, layout.top), (x, layout.bottom)
    elif isinstance(mark, Guide) and mark.axis == "y" and (y := layout.at_y(mark.value)) is not None:
        yield (layout.left, y), (layout.right, y)


def _cost(words: PlacedText, layout: Layout, curves: list[Segment], taken: list[PlacedText]) -> float:
    left, top, right, bottom = words.box
    outside = max(0.0, layout.left - left) + max(0.0, right - layout.right)
    outside += max(0.0, layout.top - top) + max(0.0, bottom - layout.bottom)
    overlaps = sum(
        left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
        for other in (each.box for each in taken)
    )
    return _OVERLAP * (outside + overlaps) + sum(_inside(segment, words.box) for segment in curves)


def _inside(segment: Segment, box: tuple[float, float, float, float]) -> float:
    """Length of the part of a segment in a box, by Liang and Barsky's clipping (1984)."""
    (x0, y0), (x1, y1) = segment
    begin, end = 0.0, 1.0
    for start, step, low, high in ((x0, x1 - x0, box[0], box[2]), (y0, y1 - y0, box[1], box[3])):
        if not step:
            if not low <= start <= high:
                return 0.0
            continue
        entry, leave = sorted(((low - start) / step, (high - start) / step))
        begin, end = max(begin, entry), min(end, leave)
    return max(0.0, end - begin) * hypot(x1 - x0, y1 - y0)
