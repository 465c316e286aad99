"""Confidence intervals of figures of a run by bootstrap.

Consecutive requests share a queue, so blocks of neighbours are resampled, with the ends joined (Hans R. Künsch, "The
jackknife and the bootstrap for general stationary observations", 1989; Dimitris N. Politis and Joseph P. Romano, "A
circular block-resampling procedure for stationary data", 1992). A block is twice as long as the correlation time of the
values, and at least n^(1/3), the order that minimises the error of the method.

Variation between starts of a server is in no single run, and so not in these intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.bench.metrics.distribution import Floats
from twofold.bench.search.trial import correlation_time

Counts: TypeAlias = npt.NDArray[np.int32]
Rows: TypeAlias = npt.NDArray[np.int64]

MAX_DRAWS: Final = 1000
FEWEST_DRAWS: Final = 200
MAX_CELLS: Final = 10_000_000
"""Draws times requests."""
MAX_WORK: Final = 100_000_000
"""Draws times values of a quantile."""


@dataclass(frozen=True, slots=True)
class BootstrapSamples:
    """How often each of n requests, in their order, is in each draw: counts[draws, n]."""

    counts: Counts

    @classmethod
    def of(cls, values: Floats, seed: int) -> BootstrapSamples:
        """Draws with blocks for these values of requests, in their order; at least one."""
        n = len(values)
        block = block_length(values)
        draws = max(FEWEST_DRAWS, min(MAX_DRAWS, MAX_CELLS // n))
        starts = np.random.default_rng(seed).integers(0, n, (draws, math.ceil(n / block)))
        return cls(_counts(starts, block, n))

    def quantiles(self, values: Floats, owner: Rows, shares: Sequence[float]) -> Floats:
        """[shares, draws]: nearest-rank quantiles of ``values``, which belong to the requests ``owner``.

        NaN for a draw without values, and for draws beyond ``MAX_WORK`` values.
        """
        found = np.full((len(shares), len(self.counts)), np.nan)
        order = np.argsort(values, kind="stable")
        ascending, owner = values[order], owner[order]
        draws = max(FEWEST_DRAWS, MAX_WORK // max(1, len(values)))
        for draw, counts in enumerate(self.counts[:draws]):
            passed = np.cumsum(counts[owner], dtype=np.int64)
            if len(passed) and passed[-1]:
                wanted = np.array(shares) * passed[-1] * (1 - 1e-12)
                found[:, draw] = ascending[np.searchsorted(passed, wanted)]
        return found

    def means(self, values: Floats, owner: Rows) -> Floats:
        """[draws]: the mean of ``values``, which belong to the requests ``owner``; NaN without any."""
        held = np.take(self.counts, owner, axis=1)
        total = held.sum(axis=1).astype(np.float64)
        mean: Floats = (held @ values) / np.where(total > 0, total, np.nan)
        return mean


def block_length(values: Floats) -> int:
    """Length of a block, at most a quarter of the values."""
    n = len(values)
    finite = values[np.isfinite(values)]
    top = float(finite.max()) if len(finite) else 0.0
    wanted = max(2.0 * correlation_time(np.where(np.isfinite(values), values, 2 * top)), math.cbrt(n))
    return max(1, min(math.ceil(wanted), n // 4))


def ratio_interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float] | None:
    """The interval of b/a by the percentiles of draws (B.

    Efron, 1979); None without ratios. Infinite by infinite is 1.
    """
    n = min(len(a), len(b))
    first, second = a[:n], b[:n]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.isinf(first) & np.isinf(second), 1.0, second / first)
    known = np.sort(ratios[~np.isnan(ratios)])
    if not len(known):
        return None
    tail = (1 - confidence) / 2
    low = known[math.floor(tail * (len(known) - 1))]
    high = known[math.ceil((1 - tail) * (len(known) - 1))]
    return float(low), float(high)


def _counts(starts: Rows, block: int, n: int) -> Counts:
    """The number of blocks of each draw that contain each request."""
    draws = len(starts)
    ends = starts + block
    rows = np.arange(draws)[:, None] * n
    edges = np.bincount((rows + starts).ravel(), minlength=draws * n)
    edges -= np.bincount((rows + ends % n).ravel(), minlength=draws * n)
    over_the_end = (ends >= n).sum(axis=1, keepdims=True)
    counts: Counts = np.cumsum(edges.reshape(draws, n), axis=1, dtype=np.int32) + over_the_end.astype(np.int32)
    return counts
