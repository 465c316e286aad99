"""A trace of real requests at an API: each request by its own lengths, through the provider's prompt cache.

Prompts share pieces (``twofold.bench.load``). A request reads the longest prefix of shared pieces that has not expired,
and writes the others; both restart the time to live. Prefixes shorter than the model's minimum are neither written nor
read. Prices are exact for every request, cliffs included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from twofold.bench.load.base import Shared
from twofold.bench.load.trace import Trace
from twofold.core.errors import ParameterError
from twofold.core.request import TTL_SECONDS, TimeToLive
from twofold.observe.billing import TokenUsage, token_lines, total_of
from twofold.planner.price.catalog import ApiModel, Tier, min_cached
from twofold.planner.price.workload import DAY_S, MONTH_DAYS, Workload

ONE: Final = Decimal(1)


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
        """Share of the cost that the cache saves; negative where it costs more than it saves."""
        return float(1 - self.cached / self.plain) if self.plain else 0.0

    @property
    def per_request(self) -> float:
        """Dollars of the mean request, with the cache."""
        return float(self.cached) / self.requests

    def per_month(self, total: Decimal) -> float:
        """A month at the trace's rate; NaN for a trace without duration."""
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
    """The requests of a trace by the prices of a moment. Raises ParameterError for a tier that the model lacks.

    Later turns of sessions are not counted: when they arrive depends on the server.
    """
    cache = _PieceCache(TTL_SECONDS[ttl], min_cached(model.name))
    plain = cached = Decimal(0)
    fresh = read = written = output = 0
    for index, now in enumerate(trace.at_s):
        whole = TokenUsage(fresh=trace.input_tokens[index], output=trace.output_tokens[index])
        found, kept = cache.ask(trace.pieces(index), now)
        usage = _usage(whole, found, kept, ttl)
        prices = model.prices(whole.prompt, at, tier)
        plain += total_of(line.amount for line in token_lines(whole, prices, ONE))
        cached += total_of(line.amount for line in token_lines(usage, prices, ONE))
        fresh, read, written = fresh + usage.fresh, read + found, written + kept
        output += whole.output
    seconds = trace.at_s[-1] - trace.at_s[0]
    return TracedCost(len(trace), seconds, ttl, plain, cached, fresh, read, written, output)


def _usage(whole: TokenUsage, read: int, written: int, ttl: TimeToLive) -> TokenUsage:
    kept = {f"written_{ttl}": written}
    return TokenUsage(fresh=whole.fresh - read - written, cached=read, output=whole.output, **kept)


class _PieceCache:
    """When each prefix expires; a prefix is known by the keys of its pieces, in order."""

    def __init__(self, ttl_s: float, least: int) -> None:
        self._ttl_s, self._least = ttl_s, least
        self._expires: dict[tuple[int, int], float] = {}

    def ask(self, pieces: Iterable[Shared], now: float) -> tuple[int, int]:
        """Tokens that a request with these pieces reads, and tokens that it writes."""
        read = total = 0
        fits = True
        for place, end in self._places(pieces):
            fits = fits and now < self._expires.get(place, 0.0)
            read, total = end if fits else read, end
            self._expires[place] = now + self._ttl_s
        if total < self._least:
            return 0, 0
        return (read, total - read) if read >= self._least else (0, total)

    def _places(self, pieces: Iterable[Shared]) -> Iterator[tuple[tuple[int, int], int]]:
        """Each prefix, and its tokens."""
        before, total = 0, 0
        for piece in pieces:
            total += piece.tokens
            before = hash((before, piece.key))
            yield (before, total), total
