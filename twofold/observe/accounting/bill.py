"""What a request costs by a price sheet, line by line.

    tokens     amount = tokens · price of a million / 10⁶ · factor               exact
    machine    amount = seconds · price of an hour / (3600 · busy share) · factor    to 10⁻¹² of the currency

The factor is the tier's. A prompt token is paid for once: as read from the cache, as written to it for a time, or as
fresh input. Only what was computed is paid for, so a request that was refused costs nothing, and one that was cut short
in its prompt pays for the rows that ran. Machine seconds are the request's part of the steps it ran in, by rows
(``PhaseWork.machine_s``): what all requests of a step pay adds up to the step.
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
"""Sums and products of prices, factors and counts have fewer digits than that."""
ROUNDED: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request by what they cost. The first five are the prompt's, each of its tokens in one of them."""

    fresh: int = 0
    cached: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0
    output: int = 0

    @classmethod
    def of(cls, reports: Iterable[RequestMetrics], written: Mapping[float, int]) -> TokenUsage:
        """Those that were read or computed. ``written`` to the cache are counted by the seconds that they live."""
        reports = tuple(reports)
        rest = sum(min(r.prompt_tokens - r.cached_tokens, r.record.prefill.rows) for r in reports)
        kept = {}
        for ttl, seconds in TTL_SECONDS.items():
            kept[ttl] = min(written.get(seconds, 0), rest)
            rest -= kept[ttl]
        return cls(
            fresh=rest,
            cached=sum(report.cached_tokens for report in reports),
            written_5m=kept["5m"],
            written_30m=kept["30m"],
            written_1h=kept["1h"],
            output=sum(report.output_tokens for report in reports),
        )

    @property
    def prompt(self) -> int:
        return self.fresh + self.cached + self.written_5m + self.written_30m + self.written_1h


@dataclass(frozen=True, slots=True)
class BillLine:
    """So many tokens or machine seconds; ``price`` is of a million tokens or of an hour, with the tier's factor."""

    kind: LineKind
    quantity: Decimal
    unit: Literal["token", "second"]
    price: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    """What a request of a ``tier`` pays, in ``currency``; the lines add up to the total."""

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
    """What the prompts with these ``reports`` cost together; None where the model, by its own name, has no price.

    ``written`` tokens of the prompts were kept in the cache, by seconds to live.
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
    """What these tokens cost, a line for each kind that there is any of."""
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
            paid = EXACT.multiply(price, factor)
            amount = EXACT.divide(EXACT.multiply(Decimal(tokens), paid), MILLION)
            yield BillLine(kind, Decimal(tokens), "token", paid, amount)


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
