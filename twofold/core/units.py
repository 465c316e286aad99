"""Sizes, durations and counts as people write them: ``1.5G``, ``512MiB``, ``5m``, ``250ms``, ``3 tokens``."""

from __future__ import annotations

import math
import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

MAX_SHARE: Final = 1.005

_BYTES: Final = {
    "b": 1,
    **{unit: KIB**power for power, letter in enumerate("kmgt", 1) for unit in (letter, f"{letter}i", f"{letter}ib")},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_SECONDS: Final = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER: Final = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_size(text: str, unit: int = 1) -> int:
    """Bytes. K, M, G and T are powers of 1024, with or without iB, in either case; kB, MB, GB and TB powers of 1000.

    ``unit`` is the number of bytes that a number without a unit counts. Raises ValueError for anything else.
    """
    count = _parse(text, _BYTES, unit)
    if count is None or not math.isfinite(count):
        raise ValueError(f"{text!r:.60} is not a size; write for example 512M or 1.5GiB.")
    return round(count)


def parse_duration(text: str) -> float:
    """Seconds, from a number with the unit us, ms, s, m, h or d, or of seconds. Raises ValueError for anything else."""
    seconds = _parse(text, _SECONDS, 1.0)
    if seconds is None or not math.isfinite(seconds):
        raise ValueError(f"{text!r:.60} is not a duration; write for example 500ms, 30s or 5m.")
    return seconds


def count(number: int, noun: str) -> str:
    """1 row, 1,200 rows."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def format_bytes(count: float) -> str:
    """A size in decimal units: 98.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def limit_share(share: float, limit: str = "limit") -> str:
    """61% of the limit. More than all of it means that it was measured on a busy machine, so no number is given."""
    return f"{share:.0%} of the {limit}" if share <= MAX_SHARE else f"at the measured {limit}"


def _parse(text: str, units: dict[str, float] | dict[str, int], bare: float) -> float | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    scale = units.get(found[2].lower()) if found[2] else bare
    return None if scale is None else float(found[1]) * scale
