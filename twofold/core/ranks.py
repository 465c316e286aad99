"""Percentiles by nearest rank."""

from __future__ import annotations

import math
from typing import Protocol, SupportsFloat


class Ascending(Protocol):
    """Values in ascending order: a list, or a NumPy array."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> SupportsFloat: ...


def nearest_rank(ascending: Ascending, share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed. There must be at least one value."""
    return float(ascending[max(0, math.ceil(share * len(ascending) - 1e-9) - 1)])
