"""Charts from data: SVG that needs no script, and text for a terminal."""

from twofold.bench.draw.chart import Axis, Chart
from twofold.bench.draw.form import duration, number, share
from twofold.bench.draw.marks import Band, Bars, Dots, Guide, Label, Line, Mark, Span, Spans, StepLine
from twofold.bench.draw.style import STYLE
from twofold.bench.draw.svg import svg
from twofold.bench.draw.terminal import plot

__all__ = [
    "STYLE",
    "Axis",
    "Band",
    "Bars",
    "Chart",
    "Dots",
    "Guide",
    "Label",
    "Line",
    "Mark",
    "Span",
    "Spans",
    "StepLine",
    "duration",
    "number",
    "plot",
    "share",
    "svg",
]
