"""Draws charts as SVG without scripts, fonts or images; colours by CSS, values on hover.

    title
    note
    legend
    y label
    ticks │ plot
          └──────
            ticks
            x label

Margins fit the ticks, and labels are placed where they cover curves the least. Widths of texts are estimated, since the
font depends on the reader's system. Texts are escaped, and characters that XML forbids are replaced.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import hypot, inf
from typing import Final, TypeAlias

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Line, Mark, Scale, Spans, StepLine, pieces

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
_HALO: Final = 1.5
"""Width of the outline of a text in the colour of the paper, which hides curves under the text."""
_OVERLAP: Final = 1e3
"""Cost of two overlapping texts, or of a pixel outside of the plot. A covered pixel of a curve costs 1."""
_LATER: Final = 2.0
"""Cost of each step down the list of positions, so that a text moves only if it gains much."""
_DROPS: Final = (-7.0, 16.0, -21.0, 30.0, -35.0, 44.0)
"""Distances of the baseline of a label below its point, in order of preference."""

_UNFIT: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FAR: Final = 1e5
_EDGE: Final = 16.0
"""Margin of a standalone picture."""
_NAMESPACE: Final = "http://www.w3.org/2000/svg"
SERIES: Final = 7
"""Number of colours; further series reuse them."""

# Colours of Okabe and Ito ("Color Universal Design", 2008), distinct with any colour vision, adjusted to a contrast of
# at least 3:1 against the background.
_LIGHT: Final = ("#0072b2", "#d55e00", "#00805c", "#b0568f", "#7a6a00", "#2b8fc7", "#4d4d4d")
_DARK: Final = ("#56b4e9", "#ff9e4a", "#2ecc9b", "#e39bc6", "#f0e442", "#8fd0f5", "#c0c0c0")


def _colours(colours: tuple[str, ...], ink: str, faint: str, grid: str, paper: str) -> str:
    series = "".join(f"--tf-{index}:{colour};" for index, colour in enumerate(colours))
    return f"{series}--tf-ink:{ink};--tf-faint:{faint};--tf-grid:{grid};--tf-paper:{paper}"


_LIGHT_RULES: Final = _colours(_LIGHT, "#1c2024", "#5b636b", "#e3e6e9", "#ffffff")
_DARK_RULES: Final = _colours(_DARK, "#e8eaed", "#9aa3ab", "#32373c", "#15181b")

STYLE: Final = "\n".join(
    (
        f".tf-chart{{{_LIGHT_RULES}}}",
        f"@media (prefers-color-scheme: dark){{.tf-chart{{{_DARK_RULES}}}}}",
        f"@media print{{.tf-chart{{{_LIGHT_RULES}}}}}",
        ".tf-chart{display:block;width:100%;height:auto;font:13px system-ui,sans-serif;fill:var(--tf-ink)}",
        ".tf-chart .title{font-size:15px;font-weight:600}",
        ".tf-chart .faint,.tf-chart .tick{fill:var(--tf-faint)}",
        ".tf-chart .tick{font-size:12px;font-variant-numeric:tabular-nums}",
        ".tf-chart .halo{paint-order:stroke;stroke:var(--tf-paper);stroke-linejoin:round;"
        f"stroke-width:{2 * _HALO:g}px}}",
        ".tf-chart.alone{width:auto;max-width:100%;background:var(--tf-paper)}",
        ".tf-chart .grid{stroke:var(--tf-grid);fill:none}",
        ".tf-chart .axis{stroke:var(--tf-faint);fill:none}",
        ".tf-chart .guide{stroke:var(--tf-faint);fill:none;stroke-dasharray:2 3}",
        ".tf-chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}",
        ".tf-chart .dashed{stroke-dasharray:6 4}",
        ".tf-chart .span{stroke:none;fill-opacity:.85}",
        ".tf-chart .dot{stroke:var(--tf-paper);stroke-width:.8;fill-opacity:.8}",
        *(f".tf-chart .l{index}{{stroke:var(--tf-{index})}}" for index in range(SERIES)),
        *(f".tf-chart .f{index}{{fill:var(--tf-{index})}}" for index in range(SERIES)),
    )
)
"""CSS of charts: light or dark as the reader's system, black on white in print. Standalone SVGs contain it."""


def svg(chart: Chart, *, width: float = 640, height: float = 300, standalone: bool = False) -> str:
    """The chart as a scalable ``<svg>`` element; ``standalone`` includes its style, for a file."""
    layout = lay_out(chart, width, height)
    style = f"<style>{STYLE}</style>" if standalone else ""
    notes = (_words(0, 34 + index * 18, line, "faint") for index, line in enumerate(layout.notes))
    parts = [_words(0, 14, chart.title, "title"), *notes, *_grid(chart, layout)]
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
    """Escapes a text for XML and HTML, also in attributes."""
    return escape(_UNFIT.sub("\ufffd", value))


def _n(value: float) -> str:
    """A coordinate to a tenth of a pixel, clipped far outside of the picture."""
    value = min(max(value, -_FAR), _FAR)
    return f"{value:.1f}".removesuffix(".0")


def _words(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    kinds = f' class="{kind}"' if kind else ""
    anchors = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{kinds}{anchors}>{text(words)}</text>'


def _path(places: Iterable[Place], kind: str) -> str:
    steps = "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
    return f'<path class="{kind}" d="M{steps}"/>'


def _titled(element: str, title: str) -> str:
    """Adds a title to an empty element ``<… />``."""
    if not title:
        return element
    name = element[1 : element.index(" ")]
    return f"{element.removesuffix('/>')}><title>{text(title)}</title></{name}>"


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
        case Line():
            return _curve(mark, layout)
        case Dots():
            return _dots(mark, layout)
        case Spans():
            return _spans(mark, layout)
        case Guide():
            return () if (line := layout.guide(mark)) is None else (_path(line, "guide"),)
        case Label():
            return ()


def _curve(mark: Line, layout: Layout) -> Iterator[str]:
    kind = f"line l{mark.series % SERIES}" + (" dashed" if mark.dashed else "")
    for piece in pieces(mark.points, layout.at):
        first, *others = places = thin(piece)
        if isinstance(mark, StepLine):
            steps = "".join(f"H{_n(x)}V{_n(y)}" for x, y in others)
            yield _titled(f'<path class="{kind}" d="M{_n(first[0])} {_n(first[1])}{steps}"/>', mark.label)
        else:
            yield _titled(_path(places, kind), mark.label)


def _dots(mark: Dots, layout: Layout) -> Iterator[str]:
    for index, point in enumerate(mark.points):
        if (place := layout.at(*point)) is not None:
            circle = f'<circle class="dot f{mark.series % SERIES}" cx="{_n(place[0])}" cy="{_n(place[1])}"'
            yield _titled(f'{circle} r="{_n(mark.radius)}"/>', mark.titles[index] if mark.titles else "")


def _spans(mark: Spans, layout: Layout) -> Iterator[str]:
    for span in mark.spans:
        start, end = layout.at(span.start, span.row + 0.12), layout.at(span.end, span.row + 0.88)
        if start is not None and end is not None:
            width, height = max(end[0] - start[0], 0.4), abs(end[1] - start[1])
            sides = f'x="{_n(start[0])}" y="{_n(min(start[1], end[1]))}" width="{width:.2f}" height="{height:.2f}"'
            yield _titled(f'<rect class="span f{mark.series % SERIES}" {sides}/>', span.title)


def _entry(entry: Entry) -> Iterator[str]:
    colour = entry.series % SERIES
    if isinstance(entry.mark, Line):
        dashed = " dashed" if entry.mark.dashed else ""
        yield f'<path class="line l{colour}{dashed}" d="M{_n(entry.x)} {_n(entry.y + 5)}h16"/>'
    elif isinstance(entry.mark, Dots):
        yield f'<circle class="dot f{colour}" cx="{_n(entry.x + 8)}" cy="{_n(entry.y + 5)}" r="4"/>'
    else:
        yield f'<rect class="span f{colour}" x="{_n(entry.x)}" y="{_n(entry.y)}" width="16" height="10"/>'
    yield _words(entry.x + 22, entry.y + 10, entry.label)


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
    """Positions in pixels. ``left top right bottom`` is the plot area; ``notes`` are the lines of the note."""

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
        """The ends of the line of a guide; None if its value has no position."""
        if mark.axis == "x":
            x = self.at_x(mark.value)
            return None if x is None else ((x, self.top), (x, self.bottom))
        y = self.at_y(mark.value)
        return None if y is None else ((self.left, y), (self.right, y))


def text_width(text: str, size: float = _EM) -> float:
    return len(text) * size * _CHARACTER


def lay_out(chart: Chart, width: float, height: float) -> Layout:
    """The layout of a chart. ``height`` is the height of the plot and its axis, below title, note and legend."""
    x, y = chart.scales()
    y_ticks = _ticks(y, chart.y, chart.y.ticks)
    left = 12 + max((text_width(text, 12) for _, text in y_ticks), default=0)
    x_ticks = _ticks(x, chart.x, max(2, int((width - left) / _TICK_EVERY)))
    right = width - 10 - (text_width(x_ticks[-1][1], 12) / 2 if x_ticks else 0)
    notes = tuple(
        textwrap.wrap(chart.note, int(width / text_width("m")), break_long_words=False, break_on_hyphens=False)
    )
    top = 22 + len(notes) * _LINE
    entries = tuple(_entries(chart, top + 4, width))
    top = (entries[-1].y + _LINE if entries else top) + 4
    plot_top = top + (_LINE if chart.y.label else 0) + 6
    plot_bottom = plot_top + height - 26 - (_LINE if chart.x.label else 0)
    whole = plot_bottom + 32 + (_LINE if chart.x.label else 0)
    return Layout(
        width, whole, left, plot_top, right, plot_bottom, x, y, x_ticks, y_ticks, notes, entries, chart.y.downwards
    )


def _ticks(scale: Scale, axis: Axis, limit: int) -> tuple[tuple[float, str], ...]:
    """Ticks and their texts; of ticks with equal texts only the first."""
    words: dict[str, float] = {}
    for value in scale.ticks(limit):
        words.setdefault(axis.form(value), value)
    return tuple((value, word) for word, value in words.items())


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
    """The texts of guides and labels, placed where they cover curves the least. Overlapping labels are omitted."""
    found = list(marks)
    guides: list[Guide | Label] = [mark for mark in found if isinstance(mark, Guide) and mark.text]
    curves = [segment for mark in found for segment in _segments(mark, layout)]
    taken: list[PlacedText] = []
    for mark in guides + [mark for mark in found if isinstance(mark, Label)]:
        places = list(_beside_guide(mark, layout) if isinstance(mark, Guide) else _beside_point(mark, layout))
        costs = [_cost(words, layout, curves, taken) + _LATER * rank for rank, words in enumerate(places)]
        lowest = min(costs, default=inf)
        if lowest < _OVERLAP or (places and isinstance(mark, Guide)):
            taken.append(places[costs.index(lowest)])
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
        for drop in (-6, 14):
            yield PlacedText(layout.right - 4, y + drop, mark.text, to_left=True)
            yield PlacedText(layout.left + 4, y + drop, mark.text)
            yield PlacedText((layout.left + layout.right) / 2, y + drop, mark.text)


def _beside_point(mark: Label, layout: Layout) -> Iterator[PlacedText]:
    if (place := layout.at(mark.x, mark.y)) is not None:
        for drop in _DROPS:
            yield PlacedText(place[0] + 9, place[1] + drop, mark.text)
            yield PlacedText(place[0] - 9, place[1] + drop, mark.text, to_left=True)


def _segments(mark: Mark, layout: Layout) -> Iterator[Segment]:
    """Line segments that texts should not cover. For a dot, its horizontal diameter."""
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
    reach = left - _HALO, top - _HALO, right + _HALO, bottom + _HALO
    return _OVERLAP * (outside + overlaps) + sum(_inside(segment, reach) for segment in curves)


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
    """The places of a line, in pixels, without those that do not change the picture.

    In each column of pixels, the first, last, lowest and highest place are kept: a line through them covers the same
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
    """The first, last, lowest and highest of places[start:end], in order."""
    if end - start <= 4:
        return list(places[start:end])
    inside = range(start, end)
    lowest = min(inside, key=lambda index: places[index][1])
    highest = max(inside, key=lambda index: places[index][1])
    return [places[index] for index in sorted({start, lowest, highest, end - 1})]
