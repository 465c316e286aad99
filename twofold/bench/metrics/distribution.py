"""Percentiles that exist: by nearest rank, with failures as infinitely slow.

The percentile q of values is the least of them that at least the share q of them does not exceed. It was really
measured, and an infinite value, which is what a failure has, moves every percentile that it should. Mean and standard
deviation are those of the finite values, for those of all would say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

PER_MILLE: Final = (500, 900, 950, 990, 999)
"""The percentiles of a ``MeasureDistribution``; whole numbers, so that ranks are exact."""


@dataclass(frozen=True, slots=True)
class MeasureDistribution:
    """Of one measure; seconds, or what its name says.

    n          values, with those of failures
    failed     how many of them are infinite
    mean, std  of the finite ones; None where there is none
    min … max  None where n is 0, infinite where that one failed
    """

    n: int
    failed: int
    mean: float | None
    std: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p99_9: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None] | Floats) -> MeasureDistribution:
        """Of all values but None, which is no value."""
        found = values if isinstance(values, np.ndarray) else _floats(values)
        n = len(found)
        if n == 0:
            return NOTHING
        ascending = np.sort(found)
        finite = ascending[np.isfinite(ascending)]
        ranks = [ascending[rank(n, per_mille)] for per_mille in PER_MILLE]
        return cls._made(n, n - len(finite), finite, None, [ascending[0], *ranks, ascending[-1]])

    @classmethod
    def weighted(cls, values: Floats, weights: Floats) -> MeasureDistribution:
        """Of values that stand for ``weights`` each, all above 0; n is the sum of the weights, rounded."""
        if len(values) == 0:
            return NOTHING
        order = np.argsort(values, kind="stable")
        ascending, weights = values[order], weights[order]
        passed = np.cumsum(weights)
        finite = np.isfinite(ascending)
        failed = float(passed[-1]) - float(weights[finite].sum())
        places = [_place(passed, per_mille) for per_mille in (0, *PER_MILLE, 1000)]
        return cls._made(
            round(passed[-1]), round(failed), ascending[finite], weights[finite], [ascending[at] for at in places]
        )

    @classmethod
    def _made(
        cls, n: int, failed: int, finite: Floats, weights: Floats | None, ranks: list[np.float64]
    ) -> MeasureDistribution:
        mean = float(np.average(finite, weights=weights)) if len(finite) else None
        std = None if mean is None else math.sqrt(float(np.average((finite - mean) ** 2, weights=weights)))
        names = ("min", "p50", "p90", "p95", "p99", "p99_9", "max")
        figures = {name: float(value) for name, value in zip(names, ranks, strict=True)}
        return cls(n, failed, mean, std, **figures)

    def at(self, name: str) -> float | None:
        """The figure of that name, such as ``p99``."""
        value: Any = getattr(self, name)
        return None if value is None else float(value)


NOTHING: Final = MeasureDistribution(0, 0, None, None, None, None, None, None, None, None, None)
"""Of no values."""


def rank(n: int, per_mille: int) -> int:
    """Place of a percentile among ``n`` ascending values: the first that ⌈n · q⌉ of them do not exceed."""
    return max(0, -(-n * per_mille // 1000) - 1)


def percentile(values: Floats, per_mille: int) -> float:
    """One percentile of at least one value, which are in any order."""
    at = rank(len(values), per_mille)
    return float(np.partition(values, at)[at])


def _place(passed: Floats, per_mille: int) -> int:
    """As ``rank``, in a running sum of weights; rounding of that sum is not a step further."""
    total = float(passed[-1])
    wanted = total * per_mille / 1000
    at = int(np.searchsorted(passed, wanted - 1e-12 * total))
    return min(at, len(passed) - 1)


def _floats(values: Iterable[float | None]) -> Floats:
    return np.fromiter((value for value in values if value is not None), np.float64)
