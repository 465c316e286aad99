"""Finds the constants that make predictions least wrong.

Direct search (Hooke and Jeeves 1961) on the logarithms of the constants: each is raised or lowered by a factor as long
as that helps, then by smaller factors. It needs no derivative, and the error that counts has none: the mean of
|predicted − measured| / measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Final
from zlib import crc32

from twofold.planner.predict.constants import SHARES

FIRST_FACTOR: Final = 1.4
LAST_FACTOR: Final = 1.002
MIN_GAIN: Final = 1e-7
LEAST: Final = 1e-9
"""Seconds below which a time counts as nothing: the search multiplies, and cannot leave zero."""

Values = dict[str, float]


def search(error: Callable[[Values], float], start: Mapping[str, float]) -> tuple[Values, float]:
    """The values near ``start`` that make ``error`` least, and that error. Shares stay at most 1."""
    found = {name: max(value, LEAST) for name, value in start.items()}
    least, factor = error(found), FIRST_FACTOR
    while factor > LAST_FACTOR:
        before = least
        for name in start:
            for turn in (factor, 1 / factor):
                tried = {**found, name: _bounded(name, found[name] * turn)}
                now = error(tried)
                if now < least - MIN_GAIN:
                    found, least = tried, now
                    break
        if least >= before - MIN_GAIN:
            factor **= 0.5
    return found, least


def mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Mean of |predicted − measured| / measured over (predicted, measured)."""
    return fmean(abs(predicted / measured - 1) for predicted, measured in pairs)


def half(key: str) -> bool:
    """In which half of the data a row is, by the hash of its name: the same on every machine."""
    return bool(crc32(key.encode()) & 1)


def _bounded(name: str, value: float) -> float:
    return min(value, 1.0) if name in SHARES else max(value, LEAST)
