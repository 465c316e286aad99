"""When a prompt cache pays: closed forms, and a simulation that they are held to.

In units of the input price, with writing costing w and reading r:

    reads after which a write has paid     (w − 1) / (1 − r)
    mean cost of a token of the prefix     m · w + (1 − m) · r, where the share m of the requests misses
    misses of Poisson arrivals             e^(−λT) where a read begins the time to live T anew, else 1 / (1 + λT)
    of a session of n requests             (w + (n − 1) · r) / n
    it pays                                where m < (1 − r) / (w − r)

A miss writes. Gaps of Poisson arrivals are exponential: one outlives T with e^(−λT); and if reads do not refresh, the
entry serves λT arrivals on average, and the next one misses (renewal reward).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from twofold.core.errors import ParameterError
from twofold.core.request import TimeToLive
from twofold.observe.accounting.prices import TokenPrices


@dataclass(frozen=True, slots=True)
class CacheCost:
    """What writing a token to the cache and reading it cost, in units of the price of input."""

    write: float
    read: float

    @classmethod
    def of(cls, prices: TokenPrices, ttl: TimeToLive) -> CacheCost:
        """By an API's prices, for entries of that time to live. Raises ParameterError where input is free."""
        if not prices.input:
            raise ParameterError("Input is free, so a cache saves nothing.", param="model")
        write = {"5m": prices.cache_write_5m, "30m": prices.cache_write_30m, "1h": prices.cache_write_1h}[ttl]
        return cls(float(write / prices.input), float(prices.cache_read / prices.input))

    @property
    def break_even_reads(self) -> float:
        """Reads after which one write has cost as much as no cache would have: infinite where reading saves nothing."""
        return (self.write - 1) / (1 - self.read) if self.read < 1 else math.inf

    @property
    def max_misses(self) -> float:
        """The share of misses below which a cache pays."""
        return 1.0 if self.write <= 1 else (1 - self.read) / (self.write - self.read)

    def mean(self, miss: float) -> float:
        """Cost of a token of the prefix where that share of the requests misses."""
        return miss * self.write + (1 - miss) * self.read

    def session(self, requests: int) -> float:
        """Cost of a token of the prefix where the first of so many requests writes it and the others read it."""
        return self.mean(1 / requests)

    def longest_gap_s(self, ttl_s: float, *, refreshed: bool = True) -> float:
        """Mean seconds between Poisson arrivals below which a cache pays."""
        most = self.max_misses
        if most >= 1:
            return math.inf
        if most <= 0:
            return 0.0
        return ttl_s / -math.log(most) if refreshed else ttl_s / (1 / most - 1)


def miss_share(per_second: float, ttl_s: float, *, refreshed: bool = True) -> float:
    """The share of Poisson arrivals that find nothing in the cache; ``refreshed``: a read begins its time anew."""
    lived = per_second * ttl_s
    return math.exp(-lived) if refreshed else 1 / (1 + lived)


@dataclass(frozen=True, slots=True)
class CacheRun:
    """What a cache did for requests with one prefix: how many wrote it, and how many read it."""

    writes: int
    reads: int

    @property
    def miss_share(self) -> float:
        return self.writes / (self.writes + self.reads) if self.writes else 0.0


def simulate(arrivals_s: Iterable[float], ttl_s: float, *, refreshed: bool = True) -> CacheRun:
    """Requests with one prefix, by the seconds at which they arrive, in order, through a cache of that time to live."""
    writes = reads = 0
    expires = -math.inf
    for now in arrivals_s:
        hit = now < expires
        reads += hit
        writes += not hit
        if refreshed or not hit:
            expires = now + ttl_s
    return CacheRun(writes, reads)
