"""Fewer points for the same picture: of each column of pixels the first, the last, the lowest and the highest point.

A line through those covers the same pixels as one through all (Jugel et al., "M4: A Visualization-Oriented Time Series
Data Aggregation", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[float, float]


def thin(places: Sequence[Place]) -> list[Place]:
    """Of ``places`` in pixels, in the order in which they are joined, those that show."""
    kept: list[Place] = []
    start = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or int(places[index][0]) != int(places[start][0]):
            kept += _corners(places, start, index)
            start = index
    return kept


def _corners(places: Sequence[Place], start: int, end: int) -> list[Place]:
    """Of places[start:end], in their order."""
    if end - start <= 4:
        return list(places[start:end])
    inside = range(start, end)
    lowest = min(inside, key=lambda index: places[index][1])
    highest = max(inside, key=lambda index: places[index][1])
    return [places[index] for index in sorted({start, lowest, highest, end - 1})]
