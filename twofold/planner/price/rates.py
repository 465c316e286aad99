"""API prices of a model: dollars of a million tokens by kind, date, tier and length of the prompt.

- A step in a rate is a cliff: a request whose prompt is longer than ``above`` tokens pays the step's rate for all of
  its tokens of that kind.
- A kind without a rate costs as much as the next wider one: writes for 5 minutes or an hour as writes, writes and reads
  of the cache as input.
- The last price list that is in force counts, and the first one if none is. A tier's list changes only the kinds that
  it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Final, Literal, get_args

from twofold.core.errors import ParameterError, closest_match
from twofold.observe.accounting.prices import TokenPrices

RateKind = Literal["input", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "output"]
Tier = Literal["default", "batch", "flex", "priority", "fast"]

RATE_KINDS: Final[tuple[RateKind, ...]] = get_args(RateKind)
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
MAKERS: Final = ("anthropic", "openai", "google")
"""Providers that sell their own models come first where a name has no provider."""
_WIDER: Final[Mapping[RateKind, RateKind]] = {
    "cache_write_5m": "cache_write",
    "cache_write_1h": "cache_write",
    "cache_write": "input",
    "cache_read": "input",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Dollars of a million tokens; ``steps`` are (above that many prompt tokens, dollars), ascending."""

    base: Decimal
    steps: tuple[tuple[int, Decimal], ...] = ()

    def of(self, prompt_tokens: int) -> Decimal:
        """For a request with a prompt of that length, cached tokens included."""
        found = self.base
        for above, price in self.steps:
            if prompt_tokens > above:
                found = price
        return found


@dataclass(frozen=True, slots=True)
class PriceList:
    """Rates in force from a day on (UTC), or between two times of each day; always if neither is given."""

    rates: Mapping[RateKind, Rate]
    start: date | None = None
    hours: tuple[time, time] | None = None

    def in_force(self, at: datetime) -> bool:
        at = at.astimezone(UTC)
        if self.start is not None and at.date() < self.start:
            return False
        if self.hours is None:
            return True
        begin, end = self.hours
        now = at.time()
        return begin <= now < end if begin <= end else now >= begin or now < end


@dataclass(frozen=True, slots=True)
class ApiModel:
    """A model that a provider sells by the token.

    lists           standard prices
    tiers           changes of them by tier
    context         longest prompt, if known
    other_charges   names of charges besides text tokens
    """

    provider: str
    id: str
    lists: tuple[PriceList, ...]
    tiers: Mapping[Tier, tuple[PriceList, ...]]
    context: int | None = None
    other_charges: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.id}"

    def rates(self, at: datetime, tier: Tier = "default") -> Mapping[RateKind, Rate]:
        """Rates at a time. Raises ParameterError if the model has no such tier then."""
        standard = next((each for each in reversed(self.lists) if each.in_force(at)), self.lists[0]).rates
        if tier == "default":
            return standard
        changed = [each for each in self.tiers.get(tier, ()) if each.in_force(at)]
        if not changed:
            raise self._no_tier(tier, at)
        found = dict(standard)
        for each in reversed(changed):
            found.update(each.rates)
        return found

    def prices(self, prompt_tokens: int, at: datetime, tier: Tier = "default") -> TokenPrices:
        """Prices of a million tokens of each kind, for a request whose prompt has ``tokens`` tokens."""
        rates = self.rates(at, tier)
        return TokenPrices(
            input=_rate(rates, "input").of(prompt_tokens),
            cache_read=_rate(rates, "cache_read").of(prompt_tokens),
            cache_write_5m=_rate(rates, "cache_write_5m").of(prompt_tokens),
            cache_write_30m=_rate(rates, "cache_write").of(prompt_tokens),
            cache_write_1h=_rate(rates, "cache_write_1h").of(prompt_tokens),
            output=rates["output"].of(prompt_tokens) if "output" in rates else Decimal(0),
        )

    def cliffs(self, at: datetime, tier: Tier = "default") -> tuple[int, ...]:
        """Prompt lengths above which a price changes."""
        return tuple(sorted({above for rate in self.rates(at, tier).values() for above, _ in rate.steps}))

    def known_tiers(self, at: datetime) -> Iterator[Tier]:
        yield "default"
        for tier, lists in self.tiers.items():
            if any(each.in_force(at) for each in lists):
                yield tier

    def _no_tier(self, tier: str, at: datetime) -> ParameterError:
        known = tuple(self.known_tiers(at))
        close = closest_match(tier, known)
        return ParameterError(
            f"{self.name} has no prices for tier {tier!r:.40}.",
            param="tier",
            hint=(f"Did you mean {close!r}? " if close else "") + f"Known: {', '.join(known)}.",
        )


def _rate(rates: Mapping[RateKind, Rate], kind: RateKind) -> Rate:
    while kind not in rates:
        kind = _WIDER[kind]
    return rates[kind]
