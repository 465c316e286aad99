"""Draws charts as SVG without scripts, fonts or images; colours by CSS, values on hover.

Texts are escaped, and characters that XML forbids are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from twofold.bench.draw.chart import Chart, Dots, Guide, Label, Line, Mark, Spans, StepLine, pieces
from twofold.bench.draw.layout import Entry, Layout, Place, labels, lay_out, thin

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
        ".tf-chart .halo{paint-order:stroke;stroke:var(--tf-paper);stroke-width:3px;stroke-linejoin:round}",
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
"""CSS for pages with charts: light or dark by the reader's system, black on white in print. A standalone SVG has it."""


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
