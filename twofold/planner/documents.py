"""Objects that several of the planner's documents have: cited numbers and charts."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.bench.draw.chart import Chart

Number: TypeAlias = float | None


class CitedNumber(ReplyObject):
    """A number with its source."""

    value: float
    source: str


class ChartAxis(ReplyObject):
    """An axis; ``form`` names the format of its values."""

    label: str
    kind: Literal["linear", "log"]
    form: str
    low: Number
    high: Number
    ticks: NonNegativeInt
    tight: bool
    downwards: bool


class ChartReply(ReplyObject):
    """A chart as data: marks Line, StepLine, Dots, Spans, Guide and Label."""

    title: str
    note: str
    x: ChartAxis
    y: ChartAxis
    marks: list[dict[str, Any]]

    @classmethod
    def of(cls, chart: Chart | None) -> Self | None:
        if chart is None:
            return None
        fields = chart.document()
        return cls(**fields | {axis: ChartAxis(**fields[axis]) for axis in ("x", "y")})
