"""The layout of a chart in pixels: margins that fit the ticks, a legend in lines, and positions of texts.

    title
    note
    legend
    y label
    ticks │ plot
          └──────
            ticks
            x label

Widths of texts are estimated, since the font depends on the reader's system.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, inf
from typing import Final, TypeAlias

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Line, Mark, StepLine, pieces
from twofold.bench.draw.scale import Scale

Place: TypeAlias = tuple[float, float]
Segment: TypeAlias = tuple[Place, Place]

_EM: Final = 13.0
_CHARACTER: Final = 0.56
_LINE: Final = 18.0
_SWATCH: Final = 22.0
_GAP: Final = 18.0
_TICK_EVERY: Final = 70.0
_SIZE: Final = 12.0
_ASCENT: Final = 10.0
_DESCENT: Final = 3.0
_OVERLAP: Final = 1e3
"""Cost of overlapping texts, or of a pixel outside of the plot; a covered pixel of a curve costs 1."""
_LATER: Final = 2.0
"""Cost of each preferred position: texts move only if much is gained."""
_DROPS: Final = (-7.0, 16.0, -21.0, 30.0, -35.0, 44.0)
"""Distances of a label's baseline under its point."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the legend; x and y of its swatch."""

    x: float
    y: float
    series: int
    label: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Layout:
    """``left top right bottom`` is the plot area in pixels; ``notes`` are the lines of the note."""

    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float
    x: Scale
    y: Scale
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    notes: tuple[str, ...]
    entries: tuple[Entry, ...]
    downwards: bool

    def at_x(self, value: float) -> float | None:
        share = self.x.share(value)
        return None if share is None else self.left + share * (self.right - self.left)

    def at_y(self, value: float) -> float | None:
        share = self.y.share(value)
        if share is None:
            return None
        down = share if self.downwards else 1 - share
        return self.top + down * (self.bottom - self.top)

    def at(self, x: float, y: float) -> Place | None:
        across, down = self.at_x(x), self.at_y(y)
        return None if across is None or down is None else (across, down)

    def guide(self, mark: Guide) -> Segment | None:
        """The ends of a guide's line."""
        if mark.axis == "x":
            x = self.at_x(mark.value)
            return None if x is None else ((x, self.top), (x, self.bottom))
        y = self.at_y(mark.value)
        return None if y is None else ((self.left, y), (self.right, y))


def text_width(text: str, size: float = _EM) -> float:
    return len(text) * size * _CHARACTER


def lay_out(chart: Chart, width: float, height: float) -> Layout:
    """``height`` is that of the plot with its axis; title, note and legend are above it."""
    x, y = chart.scales()
    y_ticks = _ticks(y, chart.y, chart.y.ticks)
    left = 12 + max((text_width(text, 12) for _, text in y_ticks), default=0)
    x_ticks = _ticks(x, chart.x, max(2, int((width - left) / _TICK_EVERY)))
    right = width - 10 - (text_width(x_ticks[-1][1], 12) / 2 if x_ticks else 0)
    notes = tuple(wrap(chart.note, width)) if chart.note else ()
    top = 22 + len(notes) * _LINE
    entries = tuple(_entries(chart, top + 4, width))
    top = (entries[-1].y + _LINE if entries else top) + 4
    plot_top = top + (_LINE if chart.y.label else 0) + 6
    plot_bottom = plot_top + height - 26 - (_LINE if chart.x.label else 0)
    whole = plot_bottom + 32 + (_LINE if chart.x.label else 0)
    return Layout(
        width, whole, left, plot_top, right, plot_bottom, x, y, x_ticks, y_ticks, notes, entries, chart.y.downwards
    )


def _ticks(scale: Scale, axis: Axis, most: int) -> tuple[tuple[float, str], ...]:
    """Values and their texts; of neighbours with equal texts only the first."""
    words: dict[str, float] = {}
    for value in scale.ticks(most):
        words.setdefault(axis.form(value), value)
    return tuple((value, word) for word, value in words.items())


def wrap(text: str, width: float) -> Iterator[str]:
    """Lines of at most about ``width`` pixels; longer words are not broken."""
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and text_width(longer) > width:
            yield line
            line = word
        else:
            line = longer
    if line:
        yield line


def _entries(chart: Chart, top: float, width: float) -> Iterator[Entry]:
    across, down = 0.0, top
    for series, label, mark in chart.legend():
        need = _SWATCH + text_width(label)
        if across and across + need > width:
            across, down = 0.0, down + _LINE
        yield Entry(across, down, series, label, mark)
        across += need + _GAP


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A text with its baseline at ``y``; ``x`` is its left end, or its right end if ``to_left``."""

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
    """Positions of texts of guides and labels that cover the least of the curves; overlapping labels are omitted."""
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
    """Positions at both ends of a guide, on both sides."""
    if (line := layout.guide(mark)) is None:
        return
    x, y = line[0]
    if mark.axis == "x":
        for baseline in (layout.top + 11, layout.bottom - 6, (layout.top + layout.bottom) / 2):
            yield PlacedText(x + 5, baseline, mark.text)
            yield PlacedText(x - 5, baseline, mark.text, to_left=True)
    else:
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
    """Line segments that texts should not cover; a dot is its diameter."""
    if isinstance(mark, Line):
        for piece in pieces(mark.points, layout.at):
            for (x0, y0), (x1, y1) in pairwise(thin(piece)):
                corner = (x1, y0) if isinstance(mark, StepLine) else (x0, y0)
                yield (x0, y0), corner
                yield corner, (x1, y1)
    elif isinstance(mark, Dots):
        for place in (layout.at(*point) for point in mark.points):
            if place is not None:
                yield (place[0] - mark.radius, place[1]), (place[0] + mark.radius, place[1])
    elif isinstance(mark, Guide) and (line := layout.guide(mark)) is not None:
        yield line


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
    """The length of a segment inside a box, by Liang and Barsky's clipping (1984)."""
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


def thin(places: Sequence[Place]) -> list[Place]:
    """The visible places among those of a line, in pixels and in order.

    Of each column of pixels these are the first, last, lowest and highest one: a line through them covers the same
    pixels (Jugel et al., "M4: A Visualization-Oriented Time Series Data Aggregation", 2014).
    """
    visible: list[Place] = []
    start = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or int(places[index][0]) != int(places[start][0]):
            visible += _corners(places, start, index)
            start = index
    return visible


def _corners(places: Sequence[Place], start: int, end: int) -> list[Place]:
    """The visible ones of places[start:end], in order."""
    if end - start <= 4:
        return list(places[start:end])
    inside = range(start, end)
    lowest = min(inside, key=lambda index: places[index][1])
    highest = max(inside, key=lambda index: places[index][1])
    return [places[index] for index in sorted({start, lowest, highest, end - 1})]
