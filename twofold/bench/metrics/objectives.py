"""Service level objectives: limits that a request meets or misses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from twofold.core.errors import ParameterError, closest_match, describe_name

_IN_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "µs": 1_000_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs)")
_EXAMPLE: Final = "write for example ttft=500ms,tpot=50ms"


@dataclass(frozen=True, slots=True)
class Objectives:
    """The most seconds of each measure of a request; None where there is no limit.

    ttft  from when it was due to its first output
    tpot  a token after the first, on average
    itl   the longest gap between two chunks
    e2e   from when it was due to its last output
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """From ``ttft=500ms,tpot=50ms``; ParameterError for what is no such list."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, found, value = (piece.strip() for piece in part.partition("="))
            if not found:
                raise ParameterError(f"{describe_name(part)} is not an objective", param="slo", hint=_EXAMPLE)
            _check_name(name, limits)
            limits[name] = duration(value, "slo")
        return cls(**limits)

    def limits(self) -> Iterator[tuple[str, float]]:
        """Measure and limit of all that has one."""
        for field in fields(self):
            limit: float | None = getattr(self, field.name)
            if limit is not None:
                yield field.name, limit

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} ≤ {_short(limit)}" for name, limit in self.limits())


def _short(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def duration(text: str, param: str) -> float:
    """Seconds that a text such as ``500ms`` says; more than 0. ParameterError without a unit, and for all else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            f"{describe_name(text)} is not a time", param=param, hint="a number with s, ms or us: 0.5s, 500ms"
        )
    seconds = float(match[1]) / _IN_A_SECOND[match[2]]
    if not seconds:
        raise ParameterError(f"{param} has a limit of 0 seconds, which nothing meets", param=param)
    return seconds


def share(text: str, param: str) -> float:
    """A share above 0 and up to 1 that a text says: ``0.9`` or ``90%``. ParameterError for all else."""
    number, percent = (text.strip()[:-1], True) if text.strip().endswith("%") else (text, False)
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ParameterError(
            f"{describe_name(text)} is not a fraction", param=param, hint="a number up to 1, or a percentage: 90%"
        )
    return value


def _check_name(name: str, limits: dict[str, float]) -> None:
    known = [field.name for field in fields(Objectives)]
    if name not in known:
        near = closest_match(name, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise ParameterError(f"there is no measure {describe_name(name)}", param="slo", hint=hint)
    if name in limits:
        raise ParameterError(f"{name} has two limits", param="slo", hint="give each measure once")
