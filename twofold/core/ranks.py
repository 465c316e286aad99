"""Percentiles by nearest rank."""

from __future__ import annotations

import math
from typing import Protocol, SupportsFloat


class Ascending(Protocol):
    """Values in ascending order: a list, or an array of NumPy."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> SupportsFloat: ...


def nearest_rank(ascending: Ascending, share: float) -> float:
    """The least of at least one value that at least that share of them does not exceed."""
    return float(ascending[max(0, math.ceil(share * len(ascending) - 1e-9) - 1)])
