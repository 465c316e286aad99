"""Charts from data: SVG that needs no script, and text for a terminal."""

from twofold.draw.chart import Axis, Chart
from twofold.draw.form import duration, number, share
from twofold.draw.marks import Band, Bars, Dots, Guide, Label, Line, Mark, Span, Spans, StepLine
from twofold.draw.style import STYLE
from twofold.draw.svg import svg
from twofold.draw.terminal import plot

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
