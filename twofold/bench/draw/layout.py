"""Where the parts of a chart lie: margins that fit the ticks, a legend that breaks into lines.

    title
    note
    legend
    y label
    ticks │ plot
          └──────
            ticks
            x label

Widths of texts are estimated, since only the reader's system knows its font.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.bench.draw.chart import Axis, Chart
from twofold.bench.draw.marks import Mark
from twofold.bench.draw.scale import Scale
from twofold.bench.draw.thin import Place

_EM: Final = 13.0
_CHARACTER: Final = 0.56
_LINE: Final = 18.0
_SWATCH: Final = 22.0
_GAP: Final = 18.0
_TICK_EVERY: Final = 70.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Of the legend: where its swatch begins."""

    x: float
    y: float
    series: int
    label: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class Layout:
    """``left top right bottom`` is the plot in pixels; ``notes`` are the lines of the note."""

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


def text_width(text: str, size: float = _EM) -> float:
    return len(text) * size * _CHARACTER


def lay_out(chart: Chart, width: float, height: float) -> Layout:
    """``height`` is that of the plot with its axis; title, note and legend come on top."""
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
    """Values and their words; of neighbours with the same words only the first."""
    words: dict[str, float] = {}
    for value in scale.ticks(most):
        words.setdefault(axis.form(value), value)
    return tuple((value, word) for word, value in words.items())


def wrap(text: str, width: float) -> Iterator[str]:
    """Lines that are about ``width`` pixels long at most; a word that is longer stays whole."""
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
