"""What a workload costs by the token: a request, a day, a month, with a cached prefix, without, or compressed.

A request either reads its prefix from the cache or, on a miss, writes it. Both bills are exact, line by line; the mean
is weighted by the share of misses. All tokens after the prefix are fresh input. In units of the input price, with a
write that costs w and a read that costs r:

    reads after which a write has paid     (w − 1) / (1 − r)
    mean cost of a token of the prefix     m · w + (1 − m) · r, where the share m of the requests misses
    misses of Poisson arrivals             e^(−λT) if a read restarts the time to live T, else 1 / (1 + λT)
    of a session of n requests             (w + (n − 1) · r) / n
    a cache pays                           where m < (1 − r) / (w − r)

Gaps of Poisson arrivals are exponential: a gap exceeds T with probability e^(−λT). If reads do not restart T, an entry
serves λT arrivals on average, and the next one misses (renewal reward). A compressor keeps one of x tokens:

    saved by a request                     S · p · (1 − 1/x), S tokens at p each
    saved against a cached prefix          S · p · (r − 1/x), and so only where x > 1/r: compressed text depends on the
                                           question, and a prefix that changes is in no cache

Requests of a trace are priced one by one, cliffs included. Their prompts share pieces (``twofold.bench.load``): a
request reads the longest prefix of shared pieces that has not expired, and writes the others; both restart the time to
live. Prefixes shorter than the model's minimum are neither written nor read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from twofold.core.errors import ParameterError
from twofold.core.request import TTL_SECONDS, TimeToLive
from twofold.observe.billing import ROUNDED, Bill, TokenPrices, TokenUsage, token_lines, total_of
from twofold.planner.price.catalog import ApiModel, Tier, min_cached

if TYPE_CHECKING:
    from twofold.bench.load.base import Shared
    from twofold.bench.load.trace import Trace

DAY_S: Final = 86_400
MONTH_DAYS: Final = Decimal(365) / 12
ONE: Final = Decimal(1)

Caching = Literal["off", "on", "too short"]
"""``too short``: the prefix is shorter than the model's minimum, and every request pays for it as fresh input."""


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Costs of writing a token to the cache and of reading it, in units of the price of input."""

    write: float
    read: float

    @classmethod
    def of(cls, prices: TokenPrices, ttl: TimeToLive) -> CacheCost:
        """From an API's prices, for entries of that time to live. Raises ParameterError if input is free."""
        if not prices.input:
            raise ParameterError("Input is free, so a cache saves nothing.", param="model")
        write: Decimal = getattr(prices, f"cache_write_{ttl}")
        return cls(float(write / prices.input), float(prices.cache_read / prices.input))

    @property
    def break_even_reads(self) -> float:
        """Reads after which a cache has cost no more than none; infinite if reading saves nothing."""
        return (self.write - 1) / (1 - self.read) if self.read < 1 else math.inf

    @property
    def max_misses(self) -> float:
        """The share of misses below which a cache pays."""
        return 1.0 if self.write <= 1 else (1 - self.read) / (self.write - self.read)

    def mean(self, miss: float) -> float:
        """Cost of a token of the prefix, with that share of misses."""
        return miss * self.write + (1 - miss) * self.read

    def longest_gap_s(self, ttl_s: float, *, refreshed: bool = True) -> float:
        """Mean seconds between Poisson arrivals below which a cache pays; ``refreshed`` as in ``miss_share``."""
        misses = self.max_misses
        if misses >= 1:
            return math.inf
        if misses <= 0:
            return 0.0
        return ttl_s / -math.log(misses) if refreshed else ttl_s / (1 / misses - 1)


def miss_share(per_second: float, ttl_s: float, *, refreshed: bool = True) -> float:
    """Share of Poisson arrivals that miss; ``refreshed``: a read restarts the time to live."""
    lived = per_second * ttl_s
    return math.exp(-lived) if refreshed else 1 / (1 + lived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Equal requests whose first ``prefix_tokens`` of ``input_tokens`` are the same and are to be cached.

    They arrive at random (Poisson), or in sessions of ``session`` requests: each session has its own prefix, and its
    gaps are shorter than the time to live.
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
        """Share of the requests that miss the cache."""
        if self.session is not None:
            return 1 / self.session
        return miss_share(self.requests_per_day / DAY_S, TTL_SECONDS[self.ttl])

    def usage(self, found: Literal["nothing", "miss", "hit"]) -> TokenUsage:
        """Tokens of a request by kind, without a cache (``nothing``), or after a cache miss or hit."""
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
    """A workload at an API: ``plain`` is a request without a cache, ``miss`` and ``hit`` are requests with one."""

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
        """Dollars of the mean request."""
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
        """Dollars that the cache saves in the mean request; negative if writing costs more than reading saves."""
        return self.plain.total - self.per_request

    @property
    def max_saved(self) -> Decimal:
        """Dollars that the cache saves in a request that hits."""
        return self.plain.total - self.hit.total if self.caching == "on" else Decimal(0)

    @property
    def half_output_saves(self) -> Decimal:
        """Dollars that a request saves if its completion is half as long."""
        output = self.workload.output_tokens
        return ROUNDED.divide(self.prices.output * (output - output // 2), Decimal(1_000_000))

    @property
    def cache(self) -> CacheCost:
        """Costs of writing and reading, in units of the input price. Raises ParameterError if input is free."""
        return CacheCost.of(self.prices, self.workload.ttl)


def api_cost(model: ApiModel, workload: Workload, at: datetime) -> ApiCost:
    """The cost of a workload at the prices of a moment. Raises ParameterError for a tier that the model lacks."""
    prices = model.prices(workload.input_tokens, at, workload.tier)
    minimum, prefix = min_cached(model.name), workload.prefix_tokens
    caching: Caching = "off" if not prefix else "on" if prefix >= minimum else "too short"
    plain = _bill(workload.usage("nothing"), prices, workload.tier)
    miss, hit = plain, plain
    if caching == "on":
        miss, hit = (_bill(workload.usage(found), prices, workload.tier) for found in ("miss", "hit"))
    return ApiCost(model, workload, prices, caching, minimum, plain, miss, hit)


def _bill(usage: TokenUsage, prices: TokenPrices, tier: Tier) -> Bill:
    return Bill("USD", tier, ONE, tuple(token_lines(usage, prices, ONE)))


def caching_options(cost: ApiCost, at: datetime) -> Iterator[ApiCost]:
    """The workload without a cache, and with each time to live that the model has prices for."""
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
    """A step in a model's prices that the workload's prompts exceed; ``paid``: dollars that it adds to a request."""

    above: int
    paid: Decimal


def cliff_above(cost: ApiCost, at: datetime) -> Cliff | None:
    """The last step below the prompt's length, or None."""
    workload = cost.workload
    passed = [above for above in cost.model.cliffs(at, workload.tier) if above < workload.input_tokens]
    if not passed:
        return None
    below = _bill(workload.usage("nothing"), cost.model.prices(passed[-1], at, workload.tier), workload.tier)
    return Cliff(passed[-1], cost.plain.total - below.total)


@dataclass(frozen=True, slots=True)
class Compression:
    """``ratio`` tokens become one; compressing a prompt costs ``cost``."""

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
        """Dollars saved on a prompt of ``tokens`` tokens at ``price`` dollars each; negative if compression costs more.

        ``cached_at``: share of the price that uncompressed tokens cost, if read from a cache.
        """
        return tokens * price * (cached_at - 1 / self.ratio) - self.cost


def min_ratio(tokens: int, price: float, cost: float = 0.0, *, cached_at: float = 1.0) -> float:
    """The ratio above which compression pays; infinite if no ratio pays."""
    full = tokens * price
    rest = cached_at - cost / full if full else 0.0
    return 1 / rest if rest > 0 else math.inf


def compression_saved(cost: ApiCost, compression: Compression) -> float:
    """Dollars that a request with a compressed prompt saves against one with fresh input."""
    return compression.saved(cost.workload.input_tokens, float(cost.prices.input) / 1e6)


@dataclass(frozen=True, slots=True)
class AgainstCache:
    """Compressing the prefix instead of reading it from the cache: dollars saved, and the ratio above which it pays."""

    saved: float
    min_ratio: float


def against_cache(cost: ApiCost, compression: Compression) -> AgainstCache | None:
    """Compression against the workload's cached prefix; None if no prefix is cached or input is free."""
    if cost.caching != "on" or not cost.prices.input:
        return None
    price, read, tokens = float(cost.prices.input) / 1e6, cost.cache.read, cost.workload.prefix_tokens
    return AgainstCache(
        compression.saved(tokens, price, cached_at=read),
        min_ratio(tokens, price, compression.cost, cached_at=read),
    )


@dataclass(frozen=True, slots=True)
class TracedCost:
    """All requests of a trace together: ``plain`` dollars without a cache, ``cached`` dollars with one.

    fresh, read, written, output   tokens, with the cache
    seconds                        from the first arrival to the last
    """

    requests: int
    seconds: float
    ttl: TimeToLive
    plain: Decimal
    cached: Decimal
    fresh: int
    read: int
    written: int
    output: int

    @property
    def prompt(self) -> int:
        return self.fresh + self.read + self.written

    @property
    def read_share(self) -> float:
        """Share of the prompts' tokens that were cached."""
        return self.read / self.prompt if self.prompt else 0.0

    @property
    def saved_share(self) -> float:
        """Share of the cost that the cache saves; negative if writing costs more than reading saves."""
        return float(1 - self.cached / self.plain) if self.plain else 0.0

    @property
    def per_request(self) -> float:
        """Dollars of the mean request, with the cache."""
        return float(self.cached) / self.requests

    def per_month(self, total: Decimal) -> float:
        """Dollars of a month at the trace's rate, if the trace costs ``total``; NaN for a trace without duration."""
        days = float(MONTH_DAYS)
        return float(total) * DAY_S * days / self.seconds if self.seconds else float("nan")

    def workload(self, tier: Tier) -> Workload:
        """The mean request. Raises ParameterError for a trace without duration, which has no rate."""
        if not self.seconds:
            raise ParameterError(
                "All requests of the trace arrive at once.", param="trace", hint="Use a trace that spans some time."
            )
        return Workload(
            input_tokens=max(1, round(self.prompt / self.requests)),
            output_tokens=round(self.output / self.requests),
            requests_per_day=self.requests * DAY_S / self.seconds,
            prefix_tokens=round(self.read / self.requests),
            ttl=self.ttl,
            tier=tier,
        )


def traced_cost(model: ApiModel, trace: Trace, ttl: TimeToLive, at: datetime, tier: Tier = "default") -> TracedCost:
    """The cost of a trace at the prices of a moment. Raises ParameterError for a tier that the model lacks.

    Later turns of sessions are not counted: their arrival depends on the server.
    """
    cache = _PieceCache(TTL_SECONDS[ttl], min_cached(model.name))
    plain = cached = Decimal(0)
    fresh = read = written = output = 0
    for index, now in enumerate(trace.at_s):
        whole = TokenUsage(fresh=trace.input_tokens[index], output=trace.output_tokens[index])
        hit, missed = cache.look_up(trace.pieces(index), now)
        written_by_ttl = {f"written_{ttl}": missed}
        usage = TokenUsage(fresh=whole.fresh - hit - missed, cached=hit, output=whole.output, **written_by_ttl)
        prices = model.prices(whole.prompt, at, tier)
        plain += total_of(line.amount for line in token_lines(whole, prices, ONE))
        cached += total_of(line.amount for line in token_lines(usage, prices, ONE))
        fresh, read, written = fresh + usage.fresh, read + hit, written + missed
        output += whole.output
    seconds = trace.at_s[-1] - trace.at_s[0]
    return TracedCost(len(trace), seconds, ttl, plain, cached, fresh, read, written, output)


class _PieceCache:
    """Times at which prefixes expire; a prefix is identified by the keys of its pieces and its number of tokens."""

    def __init__(self, ttl_s: float, min_tokens: int) -> None:
        self._ttl_s, self._min_tokens = ttl_s, min_tokens
        self._expires: dict[tuple[int, int], float] = {}

    def look_up(self, pieces: Iterable[Shared], now: float) -> tuple[int, int]:
        """Tokens that a request with these pieces reads, and tokens that it writes."""
        read, keys, total = 0, 0, 0
        live = True
        for piece in pieces:
            keys, total = hash((keys, piece.key)), total + piece.tokens
            live = live and now < self._expires.get((keys, total), 0.0)
            read = total if live else read
            self._expires[keys, total] = now + self._ttl_s
        if total < self._min_tokens:
            return 0, 0
        return (read, total - read) if read >= self._min_tokens else (0, total)
