"""Limits of a load's parameters, and the errors for values outside of them."""

from __future__ import annotations

import math
from typing import Final

from twofold.core.errors import ParameterError, describe

MAX_REQUESTS: Final = 10_000_000
MAX_TOKENS: Final = 10_000_000
MAX_SECONDS: Final = 1e7
MAX_RATE: Final = 1e6


def number(name: str, value: float, low: float, high: float) -> float:
    """``value`` if it is from ``low`` to ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ParameterError(f"{name} must be a number from {low:g} to {high:g}, not {describe(value)}.", param=name)
    return value


def above_zero(name: str, value: float, high: float) -> float:
    """``value`` if it is above 0 and at most ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
        raise ParameterError(f"{name} must be a number above 0 and up to {high:g}, not {describe(value)}.", param=name)
    return value


def whole(name: str, value: int, low: int, high: int) -> int:
    """``value`` if it is a whole number from ``low`` to ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(f"{name} must be a whole number from {low} to {high}, not {describe(value)}.", param=name)
    return value


def an_end(duration_s: float | None, most: int | None, what: str, counted: str = "requests") -> None:
    """Checks both limits of ``what``. Raises ParameterError for invalid ones, and without any."""
    if duration_s is None and most is None:
        message = f"{what} needs an end: a duration, a number of {counted} or both."
        raise ParameterError(message, param="duration", hint=f"Give --duration SECONDS or --{counted} N.")
    if duration_s is not None:
        above_zero("duration", duration_s, MAX_SECONDS)
    if most is not None:
        whole(counted, most, 1, MAX_REQUESTS)


def before(moment_s: float, duration_s: float | None) -> bool:
    """Whether ``moment_s`` is within the duration; None is endless."""
    return moment_s < (math.inf if duration_s is None else duration_s)
