"""Percentiles by nearest rank, in which failures are infinitely slow, and confidence intervals of shares.

The percentile q is the smallest measured value that at least the share q of the values does not exceed. Failures are
infinite values. Mean and standard deviation are of the finite values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

PER_MILLE: Final = {"min": 0, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999, "max": 1000}
"""The percentiles of a ``MeasureDistribution``."""


@dataclass(frozen=True, slots=True)
class MeasureDistribution:
    """Distribution of one measure, in seconds or the unit in its name.

    n          number of values, failures included
    failed     number of infinite values
    mean, std  of finite values; None without any
    min … max  None if n is 0; may be infinite
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
        """The distribution of values; None is not a value."""
        known = values if isinstance(values, np.ndarray) else [value for value in values if value is not None]
        return cls.weighted(np.asarray(known, np.float64), np.ones(len(known)))

    @classmethod
    def weighted(cls, values: Floats, weights: Floats) -> MeasureDistribution:
        """The distribution of values with weights above 0; n is the rounded sum of the weights."""
        if len(values) == 0:
            return NOTHING
        order = np.argsort(values, kind="stable")
        ascending, weights = values[order], weights[order]
        passed = np.cumsum(weights)
        count = len(ascending) if np.isfinite(ascending[-1]) else int(np.argmax(~np.isfinite(ascending)))
        finite, weights = ascending[:count], weights[:count]
        mean = float(np.average(finite, weights=weights)) if count else None
        std = None if mean is None else math.sqrt(float(np.average((finite - mean) ** 2, weights=weights)))
        failed = round(float(passed[-1]) - float(weights.sum()))
        figures = {name: float(ascending[_rank(passed, per_mille)]) for name, per_mille in PER_MILLE.items()}
        return cls(round(passed[-1]), failed, mean, std, **figures)

    def at(self, name: str) -> float | None:
        """The figure with a name such as ``p99``."""
        value: Any = getattr(self, name)
        return None if value is None else float(value)


NOTHING: Final = MeasureDistribution(0, 0, None, None, None, None, None, None, None, None, None)
"""The distribution of no values."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval: ``low`` ≤ value ≤ ``high``."""

    low: float
    high: float


def wilson(hits: float, n: float, confidence: float = 0.95) -> Interval:
    """Two-sided score interval of a share measured as ``hits`` of ``n``; [0, 1] if n is 0.

    The numbers need not be whole, since dependent values count less (E. B. Wilson, "Probable inference, the law of
    succession, and statistical inference", 1927).
    """
    if n == 0:
        return Interval(0.0, 1.0)
    z = deviations(confidence)
    share, spread = hits / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    high = 1.0 if hits == n else min(1.0, middle + half)
    return Interval(low, high)


def deviations(confidence: float) -> float:
    """The distance from the mean, in standard deviations, within which a normal variable is with that confidence."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def needed(share: float, confidence: float = 0.95) -> int:
    """The minimum number of requests whose slowest exceeds the ``share`` quantile with that confidence.

    That is the smallest n with 1 − share^n ≥ confidence (S. S. Wilks, 1941): fewer values do not bound the percentile.
    """
    return math.ceil(math.log(1 - confidence) / math.log(share))


def _rank(passed: Floats, per_mille: int) -> int:
    """Index of a percentile by the running sum of weights, with a tolerance for its rounding."""
    total = float(passed[-1])
    return min(int(np.searchsorted(passed, total * per_mille / 1000 - 1e-12 * total)), len(passed) - 1)
