"""Charts as SVG without scripts, and as text for terminals."""

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Line, Mark, Span, Spans, StepLine
from twofold.bench.draw.form import duration, number, share
from twofold.bench.draw.svg import STYLE, svg
from twofold.bench.draw.terminal import plot

__all__ = [
    "STYLE",
    "Axis",
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
