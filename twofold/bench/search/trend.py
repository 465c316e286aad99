"""What neighbours in a queue do to statistics.

Requests that follow one another wait in the same queue, so that a hundred of them say less than a hundred that know
nothing of each other. The correlation time τ = 1 + 2·Σ ρ_k tells by how much: n of them count for n / τ. It is summed
as long as neighbouring pairs of autocorrelations are positive (Charles J. Geyer, "Practical Markov chain Monte Carlo",
1992: the initial positive sequence).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from twofold.bench.metrics.distribution import Floats, deviations

FEWEST: Final = 10
"""Values of which a trend can be told."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through values over time.

    slope        what they grow a second
    error        standard error of that
    independent  how many independent values it stands on
    """

    slope: float
    error: float
    independent: float

    def rises(self, confidence: float) -> bool:
        """Whether it rises, with that confidence of a two-sided test."""
        return self.slope > self.error * student(confidence, self.independent - 2)


def correlation_time(values: Floats) -> float:
    """How many of the values, in their order, count for one; 1 where they do not depend on one another."""
    n = len(values)
    centred = values - values.mean() if n else values
    power = float(centred @ centred)
    if n < 4 or power <= 1e-18 * n:
        return 1.0
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    correlations = np.fft.irfft(spectrum)[:n] / power
    pairs = correlations[0 : n - n % 2 : 2] + correlations[1:n:2]
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    return float(min(n, max(1.0, 2.0 * kept.sum() - 1.0)))


def trend(times: Floats, values: Floats) -> Trend | None:
    """By least squares; neighbouring residuals depend on each other. None for fewer than ``FEWEST`` values."""
    if len(values) < FEWEST:
        return None
    centred = times - times.mean()
    spread = float(centred @ centred)
    if not spread:
        return None
    slope = float(centred @ values) / spread
    residuals = values - values.mean() - slope * centred
    independent = max(3.0, len(values) / correlation_time(residuals))
    variance = float(residuals @ residuals) / len(values) / (independent - 2)
    return Trend(slope, math.sqrt(variance * len(values) / spread), independent)


def joined(trends: list[Trend]) -> Trend | None:
    """The mean of several rounds' trends, by what each is sure of."""
    if not trends:
        return None
    weights = [1 / max(each.error, 1e-12) ** 2 for each in trends]
    slope = sum(weight * each.slope for weight, each in zip(weights, trends, strict=True)) / sum(weights)
    independent = sum(each.independent - 2 for each in trends) + 2
    return Trend(slope, math.sqrt(1 / sum(weights)), independent)


def student(confidence: float, freedom: float) -> float:
    """Two-sided quantile of Student's t with at least 1 degree of freedom.

    By the expansion of Abramowitz and Stegun, 26.7.5: about 20 % too small at 1 degree, 0.2 % at 5.
    """
    z = deviations(confidence)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
