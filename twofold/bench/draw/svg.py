"""A chart as SVG: no script, no font and no picture from elsewhere; colours by CSS, values on hover.

Every text is escaped, and what XML may not hold is replaced, so that a chart of hostile names is still a chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from twofold.bench.draw.chart import Chart
from twofold.bench.draw.labels import labels
from twofold.bench.draw.layout import Entry, Layout, lay_out
from twofold.bench.draw.marks import Band, Bars, Dots, Guide, Label, Line, Mark, Point, Spans, StepLine, pieces
from twofold.bench.draw.style import SERIES, STYLE
from twofold.bench.draw.thin import Place, thin

_UNFIT: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FAR: Final = 1e5
_EDGE: Final = 16.0
"""Around a picture that is a file of its own."""
_NAMESPACE: Final = "http://www.w3.org/2000/svg"


def svg(chart: Chart, *, width: float = 640, height: float = 300, standalone: bool = False) -> str:
    """The chart as an ``<svg>`` element, ``width`` units wide; it scales to the room that it gets.

    ``standalone`` makes it a file of its own, with its style inside.
    """
    layout = lay_out(chart, width, height)
    style = f"<style>{STYLE}</style>" if standalone else ""
    parts = [*_head(chart, layout), *_grid(chart, layout)]
    for mark in chart.marks:
        parts += _mark(mark, layout)
    for words in labels(chart.marks, layout):
        parts.append(_words(words.x, words.y, words.text, "tick halo", "end" if words.to_left else ""))
    for entry in layout.entries:
        parts += _entry(entry)
    edge = _EDGE if standalone else 0.0
    wide, high = _n(layout.width + 2 * edge), _n(layout.height + 2 * edge)
    size = f' width="{wide}" height="{high}"' if standalone else ""
    return (
        f'<svg xmlns="{_NAMESPACE}" class="tf-chart{" alone" if standalone else ""}"{size}'
        f' viewBox="{_n(-edge)} {_n(-edge)} {wide} {high}" role="img"'
        f' aria-label="{text(chart.title)}">{style}{"".join(parts)}</svg>'
    )


def text(value: str) -> str:
    """Fit to stand in XML and HTML, in quotes too."""
    return escape(_UNFIT.sub("\ufffd", value))


def _n(value: float) -> str:
    """A coordinate, to a tenth of a pixel; far outside of the picture it makes no difference how far."""
    value = min(max(value, -_FAR), _FAR)
    return f"{value:.1f}".removesuffix(".0")


def _words(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    kinds = f' class="{kind}"' if kind else ""
    anchors = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{kinds}{anchors}>{text(words)}</text>'


def _path(places: Iterable[Place], kind: str, *, closed: bool = False) -> str:
    steps = "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
    return f'<path class="{kind}" d="M{steps}{"Z" if closed else ""}"/>' if steps else ""


def _titled(element: str, title: str) -> str:
    """``element`` is empty, ``<… />``; with a title it holds one."""
    if not title:
        return element
    name = element[1 : element.index(" ")]
    return f"{element.removesuffix('/>')}><title>{text(title)}</title></{name}>"


def _head(chart: Chart, layout: Layout) -> Iterator[str]:
    yield _words(0, 14, chart.title, "title")
    for index, line in enumerate(layout.notes):
        yield _words(0, 34 + index * 18, line, "faint")


def _grid(chart: Chart, layout: Layout) -> Iterator[str]:
    for value, word in layout.y_ticks:
        if (y := layout.at_y(value)) is not None:
            yield f'<path class="grid" d="M{_n(layout.left)} {_n(y)}H{_n(layout.right)}"/>'
            yield _words(layout.left - 6, y + 4, word, "tick", "end")
    for value, word in layout.x_ticks:
        if (x := layout.at_x(value)) is not None:
            yield f'<path class="grid" d="M{_n(x)} {_n(layout.top)}V{_n(layout.bottom)}"/>'
            yield _words(x, layout.bottom + 17, word, "tick", "middle")
    yield f'<path class="axis" d="M{_n(layout.left)} {_n(layout.bottom)}H{_n(layout.right)}"/>'
    if chart.y.label:
        yield _words(0, layout.top - 10, chart.y.label, "faint")
    if chart.x.label:
        yield _words((layout.left + layout.right) / 2, layout.bottom + 37, chart.x.label, "faint", "middle")


def _mark(mark: Mark, layout: Layout) -> Iterable[str]:
    match mark:
        case Line() | StepLine():
            return _curve(mark, layout)
        case Dots():
            return _dots(mark, layout)
        case Band():
            return _band(mark, layout)
        case Bars():
            return _bars(mark, layout)
        case Spans():
            return _spans(mark, layout)
        case Guide() | Label():
            return _guide(mark, layout) if isinstance(mark, Guide) else ()


def _places(points: Iterable[Point], layout: Layout) -> list[Place]:
    found = (layout.at(x, y) for x, y in points)
    return [place for place in found if place is not None]


def _curve(mark: Line | StepLine, layout: Layout) -> Iterator[str]:
    kind = f"line l{mark.series % SERIES}" + (" dashed" if mark.dashed else "")
    for piece in pieces(mark.points, layout.at):
        places = thin(piece)
        yield _titled(_path(places, kind) if isinstance(mark, Line) else _stairs(places, kind), mark.label)


def _stairs(places: Sequence[Place], kind: str) -> str:
    first, *others = places
    steps = "".join(f"H{_n(x)}V{_n(y)}" for x, y in others)
    return f'<path class="{kind}" d="M{_n(first[0])} {_n(first[1])}{steps}"/>'


def _dots(mark: Dots, layout: Layout) -> Iterator[str]:
    for index, point in enumerate(mark.points):
        if (place := layout.at(*point)) is not None:
            circle = f'<circle class="dot f{mark.series % SERIES}" cx="{_n(place[0])}" cy="{_n(place[1])}"'
            yield _titled(f'{circle} r="{_n(mark.radius)}"/>', mark.titles[index] if mark.titles else "")


def _band(mark: Band, layout: Layout) -> Iterator[str]:
    low = _places(((x, y) for x, y, _ in mark.points), layout)
    high = _places(((x, y) for x, _, y in mark.points), layout)
    if low and high:
        yield _path([*thin(high), *reversed(thin(low))], f"band f{mark.series % SERIES}", closed=True)


def _bars(mark: Bars, layout: Layout) -> Iterator[str]:
    base = layout.at_y(max(0.0, layout.y.low))
    for index, (x, y) in enumerate(mark.points):
        left, right, top = layout.at_x(x - mark.width / 2), layout.at_x(x + mark.width / 2), layout.at_y(y)
        if None not in (left, right, top, base):
            title = mark.titles[index] if mark.titles else ""
            yield _box(f"bar f{mark.series % SERIES}", left or 0, right or 0, top or 0, base or 0, title)


def _spans(mark: Spans, layout: Layout) -> Iterator[str]:
    for span in mark.spans:
        start, end = layout.at(span.start, span.row + 0.12), layout.at(span.end, span.row + 0.88)
        if start is not None and end is not None:
            wide_enough = max(end[0], start[0] + 0.4)
            yield _box(f"span f{mark.series % SERIES}", start[0], wide_enough, start[1], end[1], span.title)


def _box(kind: str, left: float, right: float, one: float, other: float, title: str) -> str:
    top, height = min(one, other), abs(one - other)
    sides = f'x="{_n(left)}" y="{_n(top)}" width="{right - left:.2f}" height="{height:.2f}"'
    return _titled(f'<rect class="{kind}" {sides}/>', title)


def _guide(mark: Guide, layout: Layout) -> Iterator[str]:
    if mark.axis == "x" and (x := layout.at_x(mark.value)) is not None:
        yield f'<path class="guide" d="M{_n(x)} {_n(layout.top)}V{_n(layout.bottom)}"/>'
    elif mark.axis == "y" and (y := layout.at_y(mark.value)) is not None:
        yield f'<path class="guide" d="M{_n(layout.left)} {_n(y)}H{_n(layout.right)}"/>'


def _entry(entry: Entry) -> Iterator[str]:
    line = isinstance(entry.mark, Line | StepLine)
    dashed = " dashed" if isinstance(entry.mark, Line | StepLine) and entry.mark.dashed else ""
    colour = entry.series % SERIES
    if line:
        yield f'<path class="line l{colour}{dashed}" d="M{_n(entry.x)} {_n(entry.y + 5)}h16"/>'
    elif isinstance(entry.mark, Dots):
        yield f'<circle class="dot f{colour}" cx="{_n(entry.x + 8)}" cy="{_n(entry.y + 5)}" r="4"/>'
    else:
        kind = "band" if isinstance(entry.mark, Band) else "bar"
        yield f'<rect class="{kind} f{colour}" x="{_n(entry.x)}" y="{_n(entry.y)}" width="16" height="10"/>'
    yield _words(entry.x + 22, entry.y + 10, entry.label)
