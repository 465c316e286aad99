"""Draws charts on terminals with braille characters of 2 × 4 dots. Axes have values at their ends.

Lines, dots and guides are drawn, but not spans. If there are several curves, each ends with its number in the legend.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from twofold.bench.draw.chart import Chart, Dots, Guide, Line, Scale, StepLine, pieces

_BLANK: Final = 0x2800
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ACROSS: Final = 2
_DOWN: Final = 4

_Place = tuple[int, int]


class _Canvas:
    """A canvas of ``columns`` by ``rows`` characters. A place is the position of a dot, from the top left."""

    def __init__(self, columns: int, rows: int) -> None:
        self._cells = [[0] * columns for _ in range(rows)]
        self._marks: dict[_Place, str] = {}
        self.right = columns * _ACROSS - 1
        self.bottom = rows * _DOWN - 1

    def place(self, across: float, up: float) -> _Place:
        """The place at these shares of the axes. Places outside of the canvas are moved to one dot beyond its edge."""
        x, y = round(across * self.right), round((1 - up) * self.bottom)
        return min(max(x, -1), self.right + 1), min(max(y, -1), self.bottom + 1)

    def dot(self, x: int, y: int) -> None:
        if 0 <= x <= self.right and 0 <= y <= self.bottom:
            self._cells[y // _DOWN][x // _ACROSS] |= _DOTS[x % _ACROSS][y % _DOWN]

    def line(self, start: _Place, end: _Place) -> None:
        """A straight line between two places."""
        count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(count + 1):
            share = step / count
            self.dot(round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1])))

    def mark(self, place: _Place, sign: str) -> None:
        """Puts a sign at the place, or at the nearest free character to its left."""
        x, y = min(max(place[0], 0), self.right) // _ACROSS, min(max(place[1], 0), self.bottom) // _DOWN
        while x > 0 and self._marks.get((y, x), sign) != sign:
            x -= 1
        self._marks[y, x] = sign

    def rows(self) -> Iterator[str]:
        for y, row in enumerate(self._cells):
            yield "".join(self._marks.get((y, x)) or chr(_BLANK + cell) for x, cell in enumerate(row))


def plot(chart: Chart, *, width: int = 72, height: int = 14) -> str:
    """The chart in lines of at most ``width`` characters; the plot has ``height`` lines."""
    x, y = chart.scales()
    ends = (chart.y.form(y.high), chart.y.form(y.low))
    margin = max(len(end) for end in ends)
    canvas = _Canvas(max(8, width - margin - 2), max(2, height))
    labels = [label for _, label, _ in chart.legend()]
    for mark in chart.marks:
        if isinstance(mark, Line | Dots):
            sign = str(labels.index(mark.label) + 1) if len(labels) > 1 and mark.label else ""
            _draw(canvas, mark, x, y, sign)
        elif isinstance(mark, Guide):
            _guide(canvas, mark, x, y)
    return "\n".join(_framed(chart, canvas, x, ends, margin, labels))


def _framed(
    chart: Chart, canvas: _Canvas, x: Scale, ends: tuple[str, str], margin: int, labels: list[str]
) -> Iterator[str]:
    yield chart.title + (f"  ({chart.y.label})" if chart.y.label else "")
    rows = list(canvas.rows())
    for index, row in enumerate(rows):
        word = ends[0] if index == 0 else ends[1] if index == len(rows) - 1 else ""
        yield f"{word:>{margin}} ┤{row}"
    low, high = chart.x.form(x.low), chart.x.form(x.high)
    room = len(rows[0]) - len(low) - len(high)
    yield " " * (margin + 2) + low + f"{chart.x.label:^{max(0, room)}.{max(0, room)}}" + high
    if len(labels) > 1:
        yield " " * (margin + 2) + "  ".join(f"{index + 1} {label}" for index, label in enumerate(labels))
    limits = [mark.text for mark in chart.marks if isinstance(mark, Guide) and mark.text]
    if limits:
        yield " " * (margin + 2) + f"dotted: {', '.join(dict.fromkeys(limits))}"


def _draw(canvas: _Canvas, mark: Line | Dots, x: Scale, y: Scale, sign: str) -> None:
    def at(across: float, up: float) -> _Place | None:
        found = x.share(across), y.share(up)
        return None if found[0] is None or found[1] is None else canvas.place(found[0], found[1])

    last: _Place | None = None
    for piece in pieces(mark.points, at):
        places = list(dict.fromkeys(piece))
        last = places[-1]
        for place in places:
            canvas.dot(*place)
        for start, end in pairwise(places) if isinstance(mark, Line) else ():
            corner = (end[0], start[1]) if isinstance(mark, StepLine) else start
            canvas.line(start, corner)
            canvas.line(corner, end)
    if sign and last is not None:
        canvas.mark(last, sign)


def _guide(canvas: _Canvas, mark: Guide, x: Scale, y: Scale) -> None:
    if mark.axis == "x" and (share := x.share(mark.value)) is not None:
        for down in range(0, canvas.bottom + 1, 3):
            canvas.dot(round(share * canvas.right), down)
    elif mark.axis == "y" and (share := y.share(mark.value)) is not None:
        for across in range(0, canvas.right + 1, 4):
            canvas.dot(across, round((1 - share) * canvas.bottom))
