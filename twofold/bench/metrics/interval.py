"""How sure a share is, and how many requests a percentile needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a share: ``low`` ≤ share ≤ ``high``, at the confidence that it was asked for."""

    low: float
    high: float


def wilson(hits: float, n: float, confidence: float = 0.95) -> Interval:
    """Two-sided score interval of a share that was seen as ``hits`` of ``n``; all is possible where n is 0.

    Neither needs to be whole: what depends on one another counts for fewer than it is.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
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
    """Standard deviations to both sides of the mean within which a normal value is with that confidence."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def needed(share: float, confidence: float = 0.95) -> int:
    """The least number of requests whose slowest is above the ``share`` quantile with that confidence.

    With fewer, no value that was seen bounds the percentile: 1 − share^n ≥ confidence (S. S. Wilks, 1941).
    """
    return math.ceil(math.log(1 - confidence) / math.log(share))
