"""When compressing prompts pays: a compressor drops all but one of x tokens, and costs something itself.

    saved by a request      S · p · (1 − 1/x), S tokens at p each
    against a cached prefix, which is read at r · p: saved S · p · (r − 1/x), and so only where x > 1/r

Compressed text is fresh: it depends on the question, and a prefix that changes is in no cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twofold.core.errors import ParameterError
from twofold.planner.price.workload import ApiCost, cache_cost


@dataclass(frozen=True, slots=True)
class Compression:
    """``ratio`` tokens become one; compressing a prompt costs ``cost``, in the currency of the price."""

    ratio: float
    cost: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.ratio < math.inf and 0 <= self.cost < math.inf):
            raise ParameterError(
                "A compressor has a ratio above 0 and a cost that is not negative.",
                param="ratio",
                hint="A ratio of 4 leaves a quarter of the tokens.",
            )

    def saved(self, tokens: int, price: float, *, cached_at: float = 1.0) -> float:
        """What it saves of a prompt of so many tokens at ``price`` each; negative where it does not pay.

        ``cached_at`` is the part of the price that its tokens would pay uncompressed, read from a cache.
        """
        return tokens * price * (cached_at - 1 / self.ratio) - self.cost

    def pays(self, tokens: int, price: float, *, cached_at: float = 1.0) -> bool:
        return self.saved(tokens, price, cached_at=cached_at) > 0


def min_ratio(tokens: int, price: float, cost: float = 0.0, *, cached_at: float = 1.0) -> float:
    """The ratio above which it pays; infinite where none does."""
    full = tokens * price
    rest = cached_at - cost / full if full else 0.0
    return 1 / rest if rest > 0 else math.inf


def compression_saved(cost: ApiCost, compression: Compression) -> float:
    """What compressing the whole prompt of a request saves against paying for all of it as fresh input."""
    return compression.saved(cost.workload.input_tokens, float(cost.prices.input) / 1e6)


@dataclass(frozen=True, slots=True)
class AgainstCache:
    """Compressing the prefix instead of reading it from the cache: what a request saves, and from which ratio on."""

    saved: float
    min_ratio: float


def against_cache(cost: ApiCost, compression: Compression) -> AgainstCache | None:
    """Compression against the workload's cached prefix; None where none is cached."""
    if cost.caching != "on" or not cost.prices.input:
        return None
    price, read, tokens = float(cost.prices.input) / 1e6, cache_cost(cost).read, cost.workload.prefix_tokens
    return AgainstCache(
        compression.saved(tokens, price, cached_at=read),
        min_ratio(tokens, price, compression.cost, cached_at=read),
    )
