"""Statistics, text bars and random prompts shared by the benchmarks."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

BAR = 40


def median(values: Iterable[float]) -> float:
    """The median, or NaN without values."""
    found = list(values)
    return statistics.median(found) if found else math.nan


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds between consecutive times: the ITLs of one stream."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def bar(value: float, top: float, mark: str = "█") -> str:
    """A text bar, ``BAR`` marks long for ``top``."""
    return mark * max(1, round(BAR * value / top))


def medians(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median of each number over rows of the same fields."""
    return {name: median(row[name] for row in rows) for name in rows[0]} if rows else {}


def random_tokens(count: int, vocabulary: int, seed: int) -> list[int]:
    """``count`` random token ids below ``vocabulary``, determined by ``seed``."""
    return [int(token) for token in np.random.default_rng(seed).integers(100, min(vocabulary, 30_000), count)]
