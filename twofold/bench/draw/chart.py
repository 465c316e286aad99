"""A chart: what is shown on which axes. How it looks is its drawer's matter (``svg``, ``terminal``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from twofold.bench.draw.form import number
from twofold.bench.draw.marks import Guide, Label, Mark, reach
from twofold.bench.draw.scale import Kind, Scale, fit, placeable


@dataclass(frozen=True, slots=True)
class Axis:
    """``form`` writes a tick's value; ``low`` and ``high`` fix an end that the data would else choose.

    ``tight``: the data's ends are the axis's, which else are the next round values.
    ``downwards``, of y: the low end is at the top.
    """

    label: str = ""
    kind: Kind = "linear"
    form: Callable[[float], str] = number
    low: float | None = None
    high: float | None = None
    ticks: int = 6
    tight: bool = False
    downwards: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """``note`` is a sentence under the title: what the reader should know of it, or see in it."""

    title: str
    marks: tuple[Mark, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    note: str = ""

    def scales(self) -> tuple[Scale, Scale]:
        """Of x and y: every finite point has its place on them."""
        reaches = [reach(mark) for mark in self.marks]
        xs = [value for each, _ in reaches for value in each]
        ys = [value for _, each in reaches for value in each]
        return _scale(self.x, xs), _scale(self.y, ys)

    def legend(self) -> Iterator[tuple[int, str, Mark]]:
        """Series, label and the first mark of each label, in their order."""
        seen: set[str] = set()
        for mark in self.marks:
            if not isinstance(mark, Guide | Label) and mark.label and mark.label not in seen:
                seen.add(mark.label)
                yield mark.series, mark.label, mark


def _scale(axis: Axis, values: list[float]) -> Scale:
    low, high = axis.low, axis.high
    if axis.tight:
        found = placeable(axis.kind, values)
        low = min(found, default=None) if low is None else low
        high = max(found, default=None) if high is None else high
    return fit(axis.kind, values, low, high, axis.ticks)
