"""The cost of a request by a price sheet, line by line.

    tokens     amount = tokens · price of a million / 10⁶ · factor               exact
    machine    amount = seconds · price of an hour / (3600 · busy share) · factor    to 10⁻¹² of the currency

The factor is that of the tier. A prompt token is charged once: as read from the cache, as written to it with a time to
live, or as fresh input. Only computed tokens are charged: a refused request costs nothing, and one that ends during
prefill costs the rows that ran. Machine seconds are the request's share of its steps, by rows
(``PhaseWork.machine_s``); the shares of all requests of a step add up to the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact
from typing import Final, Literal

from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.observe.accounting.prices import MachinePrices, PriceSheet, TokenPrices

LineKind = Literal[
    "input", "cache_read", "cache_write_5m", "cache_write_30m", "cache_write_1h", "output", "prefill", "decode"
]
MILLION: Final = Decimal(1_000_000)
HOUR_S: Final = 3600
QUANTUM: Final = Decimal("1e-12")
EXACT: Final = Context(prec=100, traps=[Inexact])
"""Sums and products of prices, factors and counts have fewer digits."""
ROUNDED: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request by price. The first five partition the prompt."""

    fresh: int = 0
    cached: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0
    output: int = 0

    @classmethod
    def of(cls, reports: Iterable[RequestMetrics], written: Mapping[float, int]) -> TokenUsage:
        """The tokens that were read or computed. ``written``: those pinned in the cache, by time to live in seconds."""
        reports = tuple(reports)
        rest = sum(min(r.prompt_tokens - r.cached_tokens, r.record.prefill.rows) for r in reports)
        pinned = {}
        for ttl, seconds in TTL_SECONDS.items():
            pinned[ttl] = min(written.get(seconds, 0), rest)
            rest -= pinned[ttl]
        return cls(
            fresh=rest,
            cached=sum(report.cached_tokens for report in reports),
            written_5m=pinned["5m"],
            written_30m=pinned["30m"],
            written_1h=pinned["1h"],
            output=sum(report.output_tokens for report in reports),
        )

    @property
    def prompt(self) -> int:
        return self.fresh + self.cached + self.written_5m + self.written_30m + self.written_1h


@dataclass(frozen=True, slots=True)
class BillLine:
    """A quantity of tokens or machine seconds; ``price`` per million tokens or per hour, with the tier's factor."""

    kind: LineKind
    quantity: Decimal
    unit: Literal["token", "second"]
    price: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a request in ``currency``; the lines add up to the total."""

    currency: str
    tier: str
    factor: Decimal
    lines: tuple[BillLine, ...]

    @property
    def total(self) -> Decimal:
        return total_of(line.amount for line in self.lines)


def total_of(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum."""
    total = Decimal(0)
    for amount in amounts:
        total = EXACT.add(total, amount)
    return total


def make_bill(
    reports: Iterable[RequestMetrics], written: Mapping[float, int], sheet: PriceSheet, model: str, tier: str
) -> Bill | None:
    """The cost of the prompts with these ``reports``; None where the model has no price.

    ``written``: tokens of the prompts that were pinned in the cache, by time to live in seconds.
    """
    prices, factor = sheet.prices(model), sheet.factor(tier)
    reports = tuple(reports)
    match prices:
        case None:
            return None
        case TokenPrices():
            lines = token_lines(TokenUsage.of(reports, written), prices, factor)
        case MachinePrices():
            lines = _machine_lines(reports, prices, factor)
    return Bill(sheet.currency, tier, factor, tuple(lines))


def token_lines(usage: TokenUsage, prices: TokenPrices, factor: Decimal) -> Iterator[BillLine]:
    """The cost of tokens, a line for each kind that occurs."""
    kinds: tuple[tuple[LineKind, int, Decimal], ...] = (
        ("input", usage.fresh, prices.input),
        ("cache_read", usage.cached, prices.cache_read),
        ("cache_write_5m", usage.written_5m, prices.cache_write_5m),
        ("cache_write_30m", usage.written_30m, prices.cache_write_30m),
        ("cache_write_1h", usage.written_1h, prices.cache_write_1h),
        ("output", usage.output, prices.output),
    )
    for kind, tokens, price in kinds:
        if tokens:
            charged = EXACT.multiply(price, factor)
            amount = EXACT.divide(EXACT.multiply(Decimal(tokens), charged), MILLION)
            yield BillLine(kind, Decimal(tokens), "token", charged, amount)


def _machine_lines(reports: tuple[RequestMetrics, ...], prices: MachinePrices, factor: Decimal) -> Iterator[BillLine]:
    hour = ROUNDED.divide(EXACT.multiply(prices.per_hour, factor), prices.busy_share)
    phases: tuple[tuple[LineKind, float], ...] = (
        ("prefill", sum(report.record.prefill.machine_s for report in reports)),
        ("decode", sum(report.record.decode.machine_s for report in reports)),
    )
    for kind, machine_s in phases:
        seconds = Decimal(round(machine_s * 1e9)).scaleb(-9)
        if seconds:
            amount = ROUNDED.divide(ROUNDED.multiply(seconds, hour), HOUR_S).quantize(QUANTUM, context=ROUNDED)
            yield BillLine(kind, seconds, "second", hour.quantize(QUANTUM, context=ROUNDED), amount)
