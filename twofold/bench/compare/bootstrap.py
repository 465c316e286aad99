"""How much a figure of a run could have been another by chance.

Requests that follow each other share a queue, so single ones must not be drawn anew: whole blocks of neighbours are,
with the ends joined (Hans R. Künsch, "The jackknife and the bootstrap for general stationary observations", 1989;
Dimitris N. Politis and Joseph P. Romano, "A circular block-resampling procedure for stationary data", 1992). A block is
twice as long as the correlation time of the values, and at least n^(1/3), which is the order at which the error of the
method is least.

What varies from one start of a server to the next is in no single run, and so in none of these figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.bench.metrics.distribution import Floats
from twofold.bench.search.trend import correlation_time

Counts: TypeAlias = npt.NDArray[np.int32]
Rows: TypeAlias = npt.NDArray[np.int64]

MAX_DRAWS: Final = 1000
FEWEST_DRAWS: Final = 200
MAX_CELLS: Final = 10_000_000
"""Draws times values that are held at once."""

CELLS: Final = 512
REQUESTS_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class BootstrapSamples:
    """How often each of n values, in their order, is in each draw: counts[draws, n]."""

    counts: Counts

    @classmethod
    def of(cls, values: Floats, seed: int) -> BootstrapSamples:
        """For values, in the order in which they came, and others that belong to the same requests; at least one."""
        n = len(values)
        block = block_length(values)
        draws = max(FEWEST_DRAWS, min(MAX_DRAWS, MAX_CELLS // n))
        starts = np.random.default_rng(seed).integers(0, n, (draws, math.ceil(n / block)))
        return cls(_counts(starts, block, n))

    def quantiles(self, values: Floats, owner: Rows, shares: Sequence[float]) -> Floats:
        """[shares, draws]: nearest-rank quantiles of ``values``, which belong to the requests ``owner``; NaN for none.

        ``owner`` ascends. Of more than ``CELLS`` values, quantiles are those of a grid, to which each is rounded up.
        """
        grid = _grid(values)
        single = bool((np.diff(owner) > 0).all())
        held = self._held_singly(values, owner, grid) if single else self._held(values, owner, grid)
        return _found(grid, np.cumsum(held, axis=1, dtype=np.float64), shares)

    def _held_singly(self, values: Floats, owner: Rows, grid: Floats) -> Counts:
        """As ``_held``, where no request has two values."""
        order = np.argsort(values, kind="stable")
        ends = np.searchsorted(values[order], grid, side="right")
        drawn = np.take(self.counts, owner[order], axis=1)
        held: Counts = np.add.reduceat(drawn, ends - np.diff(ends, prepend=0), axis=1) if len(ends) else drawn
        return held

    def _held(self, values: Floats, owner: Rows, grid: Floats) -> npt.NDArray[np.float32]:
        """[draws, cells]: how many values of each draw are in each cell."""
        held = np.zeros((len(self.counts), len(grid)), np.float32)
        cells = np.searchsorted(grid, values)
        for start in range(0, self.counts.shape[1], REQUESTS_AT_ONCE):
            drawn = self.counts[:, start : start + REQUESTS_AT_ONCE].astype(np.float32)
            part = slice(*np.searchsorted(owner, (start, start + REQUESTS_AT_ONCE)))
            requests = np.zeros((drawn.shape[1], len(grid)), np.float32)
            np.add.at(requests, (owner[part] - start, cells[part]), 1)
            held += drawn @ requests
        return held

    def means(self, values: Floats, owner: Rows) -> Floats:
        """[draws]: the mean of values that belong to the requests ``owner``; NaN where a draw has none."""
        held = np.take(self.counts, owner, axis=1)
        total = held.sum(axis=1).astype(np.float64)
        mean: Floats = (held @ values) / np.where(total > 0, total, np.nan)
        return mean


def block_length(values: Floats) -> int:
    """Values of a block: at most a quarter of all."""
    n = len(values)
    finite = values[np.isfinite(values)]
    top = float(finite.max()) if len(finite) else 0.0
    wanted = max(2.0 * correlation_time(np.where(np.isfinite(values), values, 2 * top)), math.cbrt(n))
    return max(1, min(math.ceil(wanted), n // 4))


def nearest_rank(ascending: Floats, share: float) -> float:
    """The least value that at least that share of them does not exceed."""
    return float(ascending[max(0, math.ceil(share * len(ascending) - 1e-9) - 1)])


def ratio_interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float] | None:
    """Where b/a lies, of draws of both; None where there is nothing to divide. Infinite by infinite is 1.

    By the percentiles of the ratios, as they are (B. Efron, 1979).
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
    """How many blocks of each draw hold each value."""
    draws = len(starts)
    ends = starts + block
    rows = np.arange(draws)[:, None] * n
    edges = np.bincount((rows + starts).ravel(), minlength=draws * n)
    edges -= np.bincount((rows + ends % n).ravel(), minlength=draws * n)
    over_the_end = (ends >= n).sum(axis=1, keepdims=True)
    counts: Counts = np.cumsum(edges.reshape(draws, n), axis=1, dtype=np.int32) + over_the_end.astype(np.int32)
    return counts


def _grid(values: Floats) -> Floats:
    """Ascending values, the greatest among them; closer together in the slowest fiftieth."""
    ascending = np.sort(values)
    if len(ascending) <= CELLS:
        return np.unique(ascending)
    shares = np.concatenate([np.linspace(0, 0.98, CELLS // 2), np.linspace(0.98, 1, CELLS // 2)])
    at = np.ceil(shares * (len(ascending) - 1)).astype(np.int64)
    return np.unique(ascending[at])


def _found(grid: Floats, passed: Floats, shares: Sequence[float]) -> Floats:
    """[shares, draws]: the first of the grid that each share of a draw does not pass."""
    found = np.full((len(shares), len(passed)), np.nan)
    if not len(grid):
        return found
    totals = passed[:, -1]
    for at, share in enumerate(shares):
        places = (passed < (share * totals * (1 - 1e-12))[:, None]).sum(axis=1)
        found[at] = np.where(totals > 0, grid[np.minimum(places, len(grid) - 1)], np.nan)
    return found
