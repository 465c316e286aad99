"""Price sheets of tokens or machine time, as TOML, and the bills of requests.

    currency = "EUR"                # default: USD

    [default]                       # prices of models without a table of their own; without it they have none
    input = 1.00                    # per million tokens
    output = 5.00
    cache_read = 0.08               # a price, or
    of_input = { cache_write_1h = 1.6 }     # a multiple of the price of input

    [models."my-model"]             # or the price of own hardware, per hour
    per_hour = 0.40
    watts = 180                     # adds the price of electricity
    per_kwh = 0.31
    busy_share = 0.6                # the share of the hours in which requests run

    [tiers]
    flex = 0.4                      # multiple of the price; defaults: priority 2, flex and batch 0.5

Default prices of the cache are multiples of the price of input: 0.1 to read from memory or to load from the KV store,
1.25 to write for 5 or 30 minutes, 2 for an hour or a day, as those of Anthropic and OpenAI for the times that they have
(price lists of November 2026).

The cost of a request is billed line by line.

    tokens     amount = tokens · price of a million / 10⁶ · factor               exact
    machine    amount = seconds · price of an hour / (3600 · busy share) · factor    to 10⁻¹² of the currency

The factor is that of the tier. A prompt token is charged once: as read from the cache, as loaded from the KV store, as
written to one of them with a time to live, or as fresh input; tokens that were not read or computed are not charged: a
refused request costs nothing, and one that ends during prefill costs the rows that ran. Machine seconds are the
request's share of its steps, by rows (``PhaseWork.machine_s``); the shares of all requests of a step add up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from twofold.core.errors import ParameterError
from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.host.settings import Table, read_toml

LineKind = Literal[
    "input",
    "cache_read",
    "cache_load",
    "cache_write_5m",
    "cache_write_30m",
    "cache_write_1h",
    "cache_write_24h",
    "output",
    "prefill",
    "decode",
]
MILLION: Final = Decimal(1_000_000)
HOUR_S: Final = 3600
QUANTUM: Final = Decimal("1e-12")
EXACT: Final = Context(prec=100, traps=[Inexact])
"""Arithmetic without rounding: sums and products of prices, factors and counts have fewer digits."""
ROUNDED: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
PLACES: Final = 6
"""Maximum decimal places of a price or a factor, so that bills are exact."""
MAX_PRICE: Final = "1000000000"
MAX_FACTOR: Final = "1000"
MAX_CURRENCY_CHARS: Final = 8
OF_INPUT: Final[Mapping[str, Decimal]] = MappingProxyType(
    {
        "cache_read": Decimal("0.1"),
        "cache_load": Decimal("0.1"),
        "cache_write_5m": Decimal("1.25"),
        "cache_write_30m": Decimal("1.25"),
        "cache_write_1h": Decimal("2"),
        "cache_write_24h": Decimal("2"),
    }
)
TIERS: Final[Mapping[str, Decimal]] = MappingProxyType(
    {"default": Decimal(1), "priority": Decimal(2), "flex": Decimal("0.5"), "batch": Decimal("0.5")}
)
_TOKEN_FIELDS: Final = ("input", "output", "of_input", *OF_INPUT)
_MACHINE_FIELDS: Final = ("per_hour", "watts", "per_kwh", "busy_share")


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Prices per million tokens. ``input``: prompt tokens that are neither read from the cache nor written to it."""

    input: Decimal
    cache_read: Decimal
    cache_write_5m: Decimal
    cache_write_30m: Decimal
    cache_write_1h: Decimal
    output: Decimal
    cache_load: Decimal
    cache_write_24h: Decimal


@dataclass(frozen=True, slots=True)
class MachinePrices:
    """The price of own hardware per hour, electricity included. Requests run in ``busy_share`` of the hours and pay for
    all of them."""

    per_hour: Decimal
    busy_share: Decimal = Decimal(1)


Prices = TokenPrices | MachinePrices


@dataclass(frozen=True, slots=True)
class PriceSheet:
    """Prices by model, ``default`` prices of other models (None: they have no price), and the factor of each tier."""

    currency: str = "USD"
    default: Prices | None = None
    models: Mapping[str, Prices] = field(default_factory=dict)
    tiers: Mapping[str, Decimal] = field(default_factory=lambda: TIERS)

    @classmethod
    def read(cls, path: Path) -> PriceSheet:
        """The sheet in a file. Raises ParameterError for an invalid sheet, UsageError for an unreadable file."""
        return cls.of(read_toml(path))

    @classmethod
    def of(cls, table: Table) -> PriceSheet:
        """The sheet in a table."""
        default, models, tiers = (table.inner(name) for name in ("default", "models", "tiers"))
        sheet = cls(
            currency=table.text("currency", MAX_CURRENCY_CHARS) or "USD",
            default=None if default is None else _prices(default),
            models={} if models is None else {name: _prices(inner) for name, inner in models.tables()},
            tiers=TIERS if tiers is None else _tiers(tiers),
        )
        table.close()
        return sheet

    def prices(self, model: str) -> Prices | None:
        """The prices of a model; None if it has none."""
        return self.models.get(model, self.default)

    def factor(self, tier: str) -> Decimal:
        """The multiple of the price that a tier pays."""
        return self.tiers[tier]


def _prices(table: Table) -> Prices:
    table.close((*_TOKEN_FIELDS, *_MACHINE_FIELDS))
    by_token = any(name in table for name in _TOKEN_FIELDS)
    by_hour = any(name in table for name in _MACHINE_FIELDS)
    if by_token and by_hour:
        raise ParameterError(
            f"{table.name('input')} and {table.name('per_hour')} exclude each other.",
            param=table.name("per_hour"),
            hint="A model has prices of tokens or of machine time.",
        )
    return _machine_prices(table) if by_hour else _token_prices(table)


def _token_prices(table: Table) -> TokenPrices:
    price, output = (_required(table, name) for name in ("input", "output"))
    factors = table.inner("of_input")
    cache = {name: _cache_price(table, factors, name, price) for name in OF_INPUT}
    if factors is not None:
        factors.close()
    return TokenPrices(input=price, output=output, **cache)


def _cache_price(table: Table, factors: Table | None, name: str, price: Decimal) -> Decimal:
    own = table.number(name, "0", MAX_PRICE, places=PLACES)
    factor = None if factors is None else factors.number(name, "0", MAX_FACTOR, places=PLACES)
    if own is not None and factor is not None:
        raise ParameterError(
            f"{table.name(name)} is given as a price and in of_input.", param=table.name(name), hint="Give one of them."
        )
    return price * (OF_INPUT[name] if factor is None else factor) if own is None else own


def _machine_prices(table: Table) -> MachinePrices:
    watts, per_kwh = (table.number(name, "0", MAX_PRICE, places=PLACES) for name in ("watts", "per_kwh"))
    if (watts is None) != (per_kwh is None):
        missing = table.name("watts" if watts is None else "per_kwh")
        raise ParameterError(
            f"{missing} is missing: electricity has a power and a price.", param=missing, hint="Give both or neither."
        )
    hardware = table.number("per_hour", "0", MAX_PRICE, places=PLACES)
    if hardware is None and watts is None:
        raise _missing(table.name("per_hour"))
    power = Decimal(0) if watts is None or per_kwh is None else watts * per_kwh / 1000
    busy = table.number("busy_share", "0.001", "1", places=PLACES)
    return MachinePrices((hardware or Decimal(0)) + power, Decimal(1) if busy is None else busy)


def _tiers(table: Table) -> Mapping[str, Decimal]:
    given = {name: table.number(name, "0", MAX_FACTOR, places=PLACES) for name in TIERS}
    table.close()
    return MappingProxyType(
        {name: TIERS[name] if factor is None else factor for name, factor in given.items()},
    )


def _required(table: Table, name: str) -> Decimal:
    price = table.number(name, "0", MAX_PRICE, places=PLACES)
    if price is None:
        raise _missing(table.name(name))
    return price


def _missing(name: str) -> ParameterError:
    return ParameterError(f"{name} is missing.", param=name, hint="Give input and output, or per_hour.")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request by price. Each prompt token counts in one of the fields before ``output``: ``cached`` ones
    were read from memory, ``loaded`` ones from the KV store."""

    fresh: int = 0
    cached: int = 0
    loaded: int = 0
    written_5m: int = 0
    written_30m: int = 0
    written_1h: int = 0
    written_24h: int = 0
    output: int = 0

    @classmethod
    def of(cls, reports: Iterable[RequestMetrics], written: Mapping[float, int]) -> TokenUsage:
        """The tokens of prompts with these ``reports``. ``written``: those pinned in the cache, by seconds to live."""
        reports = tuple(reports)
        loaded = sum(report.loaded_tokens for report in reports)
        rest = sum(min(r.prompt_tokens - r.cached_tokens, r.record.prefill.rows) for r in reports)
        pinned = {}
        for ttl, seconds in TTL_SECONDS.items():
            pinned[ttl] = min(written.get(seconds, 0), rest)
            rest -= pinned[ttl]
        return cls(
            fresh=rest,
            cached=sum(report.cached_tokens for report in reports) - loaded,
            loaded=loaded,
            written_5m=pinned["5m"],
            written_30m=pinned["30m"],
            written_1h=pinned["1h"],
            written_24h=pinned["24h"],
            output=sum(report.output_tokens for report in reports),
        )

    @property
    def prompt(self) -> int:
        written = self.written_5m + self.written_30m + self.written_1h + self.written_24h
        return self.fresh + self.cached + self.loaded + written


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
    """The bill of the prompts with these ``reports``; None if the model has no price.

    ``written``: tokens of the prompts that were pinned in the cache, by seconds to live.
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


def forecast_cost(
    sheet: PriceSheet, model: str, tier: str, usage: TokenUsage, seconds: float | None, sharers: int
) -> Decimal | None:
    """The cost of a request that would have these tokens, or take ``seconds`` in steps that ``sharers`` requests share.
    None if the model has no price, or if its price is that of machine time and the seconds are unknown."""
    prices, factor = sheet.prices(model), sheet.factor(tier)
    match prices:
        case TokenPrices():
            return total_of(line.amount for line in token_lines(usage, prices, factor))
        case MachinePrices() if seconds is not None:
            hour = ROUNDED.divide(EXACT.multiply(prices.per_hour, factor), prices.busy_share)
            return ROUNDED.divide(ROUNDED.multiply(Decimal(seconds / sharers), hour), HOUR_S)
    return None


def token_lines(usage: TokenUsage, prices: TokenPrices, factor: Decimal) -> Iterator[BillLine]:
    """The lines of a bill for tokens, one for each kind that occurs."""
    kinds: tuple[tuple[LineKind, int, Decimal], ...] = (
        ("input", usage.fresh, prices.input),
        ("cache_read", usage.cached, prices.cache_read),
        ("cache_load", usage.loaded, prices.cache_load),
        ("cache_write_5m", usage.written_5m, prices.cache_write_5m),
        ("cache_write_30m", usage.written_30m, prices.cache_write_30m),
        ("cache_write_1h", usage.written_1h, prices.cache_write_1h),
        ("cache_write_24h", usage.written_24h, prices.cache_write_24h),
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
