"""Formats of figures in prose: bytes and FLOPs with a prefix, factors, lists, what drafts gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twofold.bench.draw.form import duration
from twofold.core.units import count

EXACT: Final = 0.005
"""Errors below this share are not shown."""


def scaled(number: float) -> str:
    """1.2 G, 340 M: three digits and the prefix of a unit."""
    prefixes = iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while number >= 999.5 and (larger := next(prefixes, None)) is not None:
        prefix, number = larger, number / 1000
    return f"{number:.3g} {prefix}"


def size(nbytes: float) -> str:
    """141 GB."""
    return f"{scaled(nbytes)}B"


def factor(gain: float) -> str:
    """×1.92, ×13."""
    return f"×{gain:.2f}" if gain < 9.995 else f"×{gain:.0f}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def verdict(error: float) -> str:
    """2% too short: the error of a prediction, as a share of the measured value."""
    return "right" if abs(error) < EXACT else f"{abs(error):.0%} too {'long' if error > 0 else 'short'}"


def drafts_note(drafted: int, accepted: int, saved_s: float, what: str = "tokens") -> str:
    """28 of 35 tokens were right; 28 steps and 102 ms saved: a step for each token, and seconds, or a loss."""
    steps = count(accepted, "step")
    saved = f"{steps} and {duration(saved_s)} saved" if saved_s >= 0 else f"{steps} saved, {duration(-saved_s)} lost"
    return f"{accepted:,} of {drafted:,} {what} were right; {saved}"
