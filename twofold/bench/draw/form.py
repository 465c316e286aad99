"""Formats values for axes and tables, short and in a suitable unit."""

from __future__ import annotations

import math
from typing import Final

NONE: Final = "–"
INFINITE: Final = "∞"

_DURATIONS: Final = ((1e-6, "µs", 1e6), (1e-3, "µs", 1e6), (1.0, "ms", 1e3), (math.inf, "s", 1.0))
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None) -> str:
    """Three significant digits and a prefix: 0.25, 12, 1.5k, 20M."""
    if value is None or not math.isfinite(value):
        return _missing_or_infinite(value)
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)}{prefix}"
    return _digits(value)


def duration(seconds: float | None) -> str:
    """A time in s, ms or µs with three significant digits: 1.25 s, 380 ms, 12.5 µs."""
    if seconds is None or not math.isfinite(seconds):
        return _missing_or_infinite(seconds)
    if seconds == 0:
        return "0"
    unit, factor = next((unit, factor) for below, unit, factor in _DURATIONS if abs(seconds) < below * 0.9995)
    return f"{_digits(seconds * factor)} {unit}"


def share(value: float | None) -> str:
    """A share in percent with three significant digits, more above 99%: 50%, 71.2%, 99.95%."""
    if value is None or not math.isfinite(value):
        return _missing_or_infinite(value)
    digits = 5 if 0.99 < abs(value) < 1 else 3
    return f"{_plain(f'{value * 100:.{digits}g}')}%"


def _missing_or_infinite(value: float | None) -> str:
    """The text of a value that is missing or infinite."""
    if value is None or math.isnan(value):
        return NONE
    return INFINITE if value > 0 else f"-{INFINITE}"


def _digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return _plain(f"{value:.3g}")


def _plain(text: str) -> str:
    """The number in ``text`` without an exponent."""
    return f"{float(text):.12f}".rstrip("0").rstrip(".") if "e" in text else text
