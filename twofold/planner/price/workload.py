"""What a workload costs by the token: a request, a day, a month, with a prefix that a cache keeps or without.

A request either reads its prefix from the cache or, on a miss, writes it: both are billed exactly, line by line, and
the mean is taken by the share that misses (``caching``). All tokens after the prefix are fresh input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

from twofold.core.errors import ParameterError
from twofold.core.request import TTL_SECONDS, TimeToLive
from twofold.observe.accounting.bill import ROUNDED, Bill, TokenUsage, token_lines
from twofold.observe.accounting.prices import TokenPrices
from twofold.planner.price.caching import CacheCost, miss_share
from twofold.planner.price.minimums import min_cached
from twofold.planner.price.rates import ApiModel, Tier

DAY_S: Final = 86_400
MONTH_DAYS: Final = Decimal(365) / 12

Caching = Literal["off", "on", "too short"]
"""``too short``: the prefix has fewer tokens than the model keeps, and every request pays for it as fresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests that are alike: ``prefix_tokens`` of the ``input_tokens`` begin all of them and are to be cached.

    They arrive at random (Poisson); or in sessions of ``session`` requests, each with a prefix of its own, whose gaps
    the cache survives.
    """

    input_tokens: int
    output_tokens: int
    requests_per_day: float
    prefix_tokens: int = 0
    ttl: TimeToLive = "5m"
    session: int | None = None
    tier: Tier = "default"

    def __post_init__(self) -> None:
        checks = (
            ("input_tokens", self.input_tokens >= 1, "at least 1"),
            ("output_tokens", self.output_tokens >= 0, "not negative"),
            ("requests_per_day", 0 < self.requests_per_day < math.inf, "above 0"),
            ("prefix_tokens", 0 <= self.prefix_tokens <= self.input_tokens, "at most the tokens of the prompt"),
            ("session", self.session is None or self.session >= 1, "at least 1"),
        )
        for name, right, wanted in checks:
            if not right:
                raise ParameterError(f"{name} must be {wanted}, not {getattr(self, name)}.", param=name)

    @property
    def miss_share(self) -> float:
        """The share of the requests that find no prefix in the cache."""
        if self.session is not None:
            return 1 / self.session
        return miss_share(self.requests_per_day / DAY_S, TTL_SECONDS[self.ttl])

    def usage(self, found: Literal["nothing", "miss", "hit"]) -> TokenUsage:
        """A request's tokens by what they cost."""
        rest = self.input_tokens - self.prefix_tokens
        match found:
            case "nothing":
                return TokenUsage(fresh=self.input_tokens, output=self.output_tokens)
            case "hit":
                return TokenUsage(fresh=rest, cached=self.prefix_tokens, output=self.output_tokens)
            case "miss":
                written = {f"written_{self.ttl}": self.prefix_tokens}
                return TokenUsage(fresh=rest, output=self.output_tokens, **written)


@dataclass(frozen=True, slots=True)
class ApiCost:
    """What a workload costs at an API: ``plain`` is a request without a cache, ``miss`` and ``hit`` are those with."""

    model: ApiModel
    workload: Workload
    prices: TokenPrices
    caching: Caching
    min_cached: int
    plain: Bill
    miss: Bill
    hit: Bill

    @property
    def miss_share(self) -> float:
        return self.workload.miss_share if self.caching == "on" else 1.0

    @property
    def per_request(self) -> Decimal:
        """Of the mean request."""
        if self.caching != "on":
            return self.plain.total
        missed = Decimal(repr(self.miss_share))
        return ROUNDED.add(ROUNDED.multiply(missed, self.miss.total), ROUNDED.multiply(1 - missed, self.hit.total))

    @property
    def per_day(self) -> Decimal:
        return ROUNDED.multiply(self.per_request, Decimal(repr(self.workload.requests_per_day)))

    @property
    def per_month(self) -> Decimal:
        return ROUNDED.multiply(self.per_day, MONTH_DAYS)

    @property
    def saved(self) -> Decimal:
        """What the cache saves of a request; negative where it costs more than it saves."""
        return self.plain.total - self.per_request

    @property
    def max_saved(self) -> Decimal:
        """What it would save of a request that never missed."""
        return self.plain.total - self.hit.total if self.caching == "on" else Decimal(0)


def api_cost(model: ApiModel, workload: Workload, at: datetime) -> ApiCost:
    """What a workload costs by the prices of a moment. Raises ParameterError for a tier that the model has not."""
    prices = model.prices(workload.input_tokens, at, workload.tier)
    least = min_cached(model.name)
    caching: Caching = "off" if not workload.prefix_tokens else "too short"
    if workload.prefix_tokens and workload.prefix_tokens >= least:
        caching = "on"
    plain = _bill(workload.usage("nothing"), prices, workload.tier)
    miss, hit = plain, plain
    if caching == "on":
        miss, hit = (_bill(workload.usage(found), prices, workload.tier) for found in ("miss", "hit"))
    return ApiCost(model, workload, prices, caching, least, plain, miss, hit)


def _bill(usage: TokenUsage, prices: TokenPrices, tier: Tier) -> Bill:
    return Bill("USD", tier, Decimal(1), tuple(token_lines(usage, prices, Decimal(1))))


def half_answers(cost: ApiCost) -> Decimal:
    """What a request saves whose answer is half as long."""
    output = cost.workload.output_tokens
    return ROUNDED.divide(cost.prices.output * (output - output // 2), Decimal(1_000_000))


def caching_options(cost: ApiCost, at: datetime) -> Iterator[ApiCost]:
    """The workload without a cache, and with every time to live that the model has prices for."""
    workload = cost.workload
    if cost.caching != "on":
        yield cost
        return
    yield api_cost(cost.model, replace(workload, prefix_tokens=0), at)
    hourly = "cache_write_1h" in cost.model.rates(at, workload.tier)
    for ttl in dict.fromkeys((workload.ttl, *(("5m", "1h") if hourly else ()))):
        yield api_cost(cost.model, replace(workload, ttl=ttl), at)


@dataclass(frozen=True, slots=True)
class Cliff:
    """A step in a model's prices that the workload's prompts are above: what a request pays for being there."""

    above: int
    paid: Decimal


def cliff_above(cost: ApiCost, at: datetime) -> Cliff | None:
    """The last step below the prompt's length; None where there is none."""
    workload = cost.workload
    passed = [above for above in cost.model.cliffs(at, workload.tier) if above < workload.input_tokens]
    if not passed:
        return None
    below = _bill(workload.usage("nothing"), cost.model.prices(passed[-1], at, workload.tier), workload.tier)
    return Cliff(passed[-1], cost.plain.total - below.total)


def cache_cost(cost: ApiCost) -> CacheCost:
    """What writing and reading cost there, in units of the input price."""
    return CacheCost.of(cost.prices, cost.workload.ttl)
