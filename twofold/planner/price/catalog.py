"""API models by name, and their prices: dollars of a million tokens by kind, date, tier and length of the prompt.

- A step in a rate is a cliff: a request whose prompt is longer than ``above`` tokens pays the step's rate for all of
  its tokens of that kind.
- A kind without a rate costs as much as the next wider one: writes for 5 minutes or an hour as writes, writes and reads
  of the cache as input.
- The last price list in force counts, or the first list if none is in force. A tier's list replaces only the kinds that
  it has.

Prices are those of genai-prices if installed, else of the table that comes with Twofold. A model's name is an id
(``claude-sonnet-4-6``), or a provider and an id (``openai/gpt-5``), in any case, with dots, dashes or spaces, with or
without a date at its end.

``table.toml`` has Anthropic's, OpenAI's and Google's models, the day on which they were checked, and for each model its
price lists, the standard ones first. A list has dollars of a million tokens by kind; a list with ``above`` adds the
prices of longer prompts to the list before it. ``from`` is the day on which a list begins, ``tier`` its tier, ``of`` a
share of the standard prices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from itertools import takewhile
from typing import Any, Final, Literal, get_args

from twofold.core.errors import ModelNotFoundError, ParameterError, closest_match
from twofold.observe.billing import TokenPrices

RateKind = Literal["input", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "output"]
Tier = Literal["default", "batch", "flex", "priority", "fast"]

RATE_KINDS: Final[tuple[RateKind, ...]] = get_args(RateKind)
TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
MAKERS: Final = ("anthropic", "openai", "google")
"""Providers that make their models; for a name without a provider they are tried first."""
_WIDER: Final[Mapping[RateKind, RateKind]] = {
    "cache_write_5m": "cache_write",
    "cache_write_1h": "cache_write",
    "cache_write": "input",
    "cache_read": "input",
}
_DATE: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$")
_CONTEXTS: Final = ("processing", "service_tier", "speed")
"""Fields by which genai-prices names a request's tier."""
MINIMUMS: Final[tuple[tuple[str, int], ...]] = (
    # Anthropic, prompt caching, "Cache limitations" (platform.claude.com), as of 2026-11. Sonnet 4.6: its page said
    # 1,024, and the service caches from 2,048 on (anthropics/anthropic-sdk-python, issue 1194).
    ("anthropic/claude-3-haiku", 2048),
    ("anthropic/claude-3-5-haiku", 2048),
    ("anthropic/claude-haiku-4-5", 4096),
    ("anthropic/claude-opus-4-5", 4096),
    ("anthropic/claude-opus-4-6", 4096),
    ("anthropic/claude-opus-4-7", 2048),
    ("anthropic/claude-opus-5", 512),
    ("anthropic/claude-fable-5", 512),
    ("anthropic/claude-mythos-5", 512),
    ("anthropic/claude-sonnet-4-6", 2048),
    ("anthropic/", 1024),
    # OpenAI, prompt caching (developers.openai.com), as of 2026-11: every model that caches.
    ("openai/", 1024),
    # Google, context caching (ai.google.dev), as of 2026-05.
    ("google/gemini-2.5-pro", 4096),
    ("google/gemini-3-pro", 4096),
    ("google/gemini-3.1-pro", 4096),
    ("google/", 1024),
)
"""Minimum tokens of a cached prefix, by the start of a model's name; the longest match counts. A new model has its
predecessor's minimum until its provider publishes one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Dollars of a million tokens; ``steps`` are (above that many prompt tokens, dollars), ascending."""

    base: Decimal
    steps: tuple[tuple[int, Decimal], ...] = ()

    def of(self, prompt_tokens: int) -> Decimal:
        """The price for a request whose prompt has ``prompt_tokens`` tokens, cached ones included."""
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
    tiers           prices that differ from them, by tier
    context         longest prompt in tokens, if known
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
        """Rates at a time. Raises ParameterError if the model has no prices for the tier at that time."""
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
        """Prices of a million tokens of each kind, for a request whose prompt has ``prompt_tokens`` tokens."""
        rates = self.rates(at, tier)
        return TokenPrices(
            input=_rate(rates, "input").of(prompt_tokens),
            cache_read=_rate(rates, "cache_read").of(prompt_tokens),
            cache_write_5m=_rate(rates, "cache_write_5m").of(prompt_tokens),
            cache_write_30m=_rate(rates, "cache_write").of(prompt_tokens),
            cache_write_1h=_rate(rates, "cache_write_1h").of(prompt_tokens),
            output=rates["output"].of(prompt_tokens) if "output" in rates else Decimal(0),
            cache_load=_rate(rates, "cache_read").of(prompt_tokens),
            cache_write_24h=_rate(rates, "cache_write_1h").of(prompt_tokens),
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


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by ``provider/id``, with the ``source`` of the prices and the day on which they were ``checked``.

    ``guess`` finds the key of a model by another of its names, or None.
    """

    models: Mapping[str, ApiModel]
    source: str
    checked: date | None
    guess: Callable[[str], str | None] | None = None
    _plain: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plain", _names(self.models))

    def find(self, name: str) -> ApiModel:
        """The model of that name. Raises ModelNotFoundError with the closest name."""
        plain = plain_name(name)
        key = self._exact(plain) or self._exact(_DATE.sub("", plain)) or (self.guess(name) if self.guess else None)
        if key is None:
            raise self._unknown(name)
        return self.models[key]

    def _exact(self, plain: str) -> str | None:
        if plain in self._plain:
            return self._plain[plain]
        found = [self._plain[key] for key in self._plain if key.partition("/")[2] == plain]
        own = [key for maker in MAKERS for key in found if key.startswith(f"{maker}/")]
        return next(iter([*own, *found]), None)

    def _unknown(self, name: str) -> ModelNotFoundError:
        wanted = plain_name(name)
        known = self._plain if "/" in wanted else {key.partition("/")[2] for key in self._plain}
        close = closest_match(wanted, known)
        hint = "" if close is None else f"Did you mean {self.models[self._exact(close) or ''].name!r}? "
        more = "" if self.guess else " For prices of more models: pip install genai-prices."
        return ModelNotFoundError(
            f"No price is known for {name!r:.60}.", hint=hint + f"Prices are from {self.source}.{more}"
        )


def _names(keys: Iterable[str]) -> dict[str, str]:
    """Keys by plain name, and by plain name without a date unless another model has that name."""
    names = {plain_name(key): key for key in keys}
    return {_DATE.sub("", plain): key for plain, key in names.items()} | names


def plain_name(name: str) -> str:
    """The form in which names are compared."""
    return re.sub(r"[\s_.]+", "-", name.strip().lower())


@lru_cache(maxsize=1)
def known_catalog() -> Catalog:
    """Prices of genai-prices if it is installed (the extra ``plan``), else of the table."""
    if find_spec("genai_prices") is None:
        return read_table()
    return read_published()


def read_published() -> Catalog:
    """Prices of genai-prices, which must be installed: every model that it has text prices of."""
    from genai_prices.data import providers  # noqa: PLC0415 - optional
    from genai_prices.data_snapshot import DataSnapshot  # noqa: PLC0415

    def guess(name: str) -> str | None:
        """Finds a model by genai-prices' own rules, which know the providers' names for it."""
        provider, _, rest = name.rpartition("/")
        snapshot = DataSnapshot(providers=providers, from_auto_update=False)
        for maker in (provider,) if provider else (*MAKERS, None):
            try:
                found, model = snapshot.find_provider_model(rest, None, maker, None)
            except LookupError:
                continue
            owner = next(each.id for each in (found, *providers) if any(model is other for other in each.models))
            return key if (key := f"{owner}/{model.id}") in models else None
        return None

    read = (_published_model(provider.id, model) for provider in providers for model in provider.models)
    models = {model.name: model for model in read if model.lists}
    return Catalog(models, f"genai-prices {version('genai-prices')}", None, guess)


def _published_model(provider: str, model: Any) -> ApiModel:
    given = model.prices if isinstance(model.prices, list) else [model]
    lists = tuple(each for each in map(_published_list, given) if "input" in each.rates)
    tiers: dict[Tier, list[PriceList]] = {}
    for variant in model.price_variants or ():
        tier = _tier(variant.when)
        changed = _published_list(variant)
        if tier is not None and changed.rates:
            tiers.setdefault(tier, []).append(changed)
    return ApiModel(
        provider=provider,
        id=model.id,
        lists=lists,
        tiers={tier: tuple(found) for tier, found in tiers.items()},
        context=model.context_window,
        other_charges=tuple(sorted({name for each in given for name in _other_charges(each.prices)})),
    )


def _tier(when: dict[str, str]) -> Tier | None:
    context, value = next(iter(when.items()))
    known = len(when) == 1 and context in _CONTEXTS and value != "default"
    return next((tier for tier in TIERS if known and tier == value), None)


def _published_list(priced: Any) -> PriceList:
    rates = dict(_published_rates(priced.prices))
    constraint = getattr(priced, "constraint", None)
    start: date | None = getattr(constraint, "start_date", None)
    begin, end = getattr(constraint, "start_time", None), getattr(constraint, "end_time", None)
    return PriceList(rates, start, None if begin is None or end is None else (_utc(begin), _utc(end)))


def _utc(moment: time) -> time:
    """A time of day in UTC; a time without an offset is in UTC already."""
    if moment.tzinfo is None:
        return moment
    return datetime.combine(date(1970, 1, 1), moment).astimezone(UTC).time()


def _published_rates(prices: Any) -> Iterator[tuple[RateKind, Rate]]:
    for kind in RATE_KINDS:
        price = vars(prices).get(f"{kind}_mtok")
        if price is not None:
            steps = tuple((tier.start, tier.price) for tier in getattr(price, "tiers", ()))
            yield kind, Rate(getattr(price, "base", price), steps)


def _other_charges(prices: Any) -> Iterable[str]:
    """Charges for anything but text tokens, such as ``web searches``."""
    known = {f"{kind}_mtok" for kind in RATE_KINDS}
    for name, price in vars(prices).items():
        if price is not None and name not in known and not name.startswith("_"):
            yield name.rpartition("_")[0].replace("_", " ")


def read_table() -> Catalog:
    """The table that comes with Twofold."""
    return parse_table(files("twofold.planner.price").joinpath("table.toml").read_text(encoding="utf-8"))


def parse_table(text: str) -> Catalog:
    """The catalog of a table in the form of ``table.toml``."""
    table = tomllib.loads(text, parse_float=Decimal)
    checked: date = table.pop("checked")
    source: str = table.pop("source")
    models = (_table_model(provider, id, lists) for provider, found in table.items() for id, lists in found.items())
    return Catalog({model.name: model for model in models}, f"{source}, checked on {checked}", checked)


def _table_model(provider: str, id: str, given: list[dict[str, Any]]) -> ApiModel:
    standard: list[PriceList] = []
    tiers: dict[Tier, tuple[PriceList, ...]] = {}
    for index, each in enumerate(given):
        if "above" in each:
            continue
        steps = list(takewhile(lambda later: "above" in later, given[index + 1 :]))
        if "tier" not in each:
            standard.append(_table_list(each, steps))
        else:
            found = tuple(_shares(standard, each["of"])) if "of" in each else (_table_list(each, steps),)
            tiers[each["tier"]] = tiers.get(each["tier"], ()) + found
    return ApiModel(provider, id, tuple(standard), tiers)


def _table_list(given: Mapping[str, Any], steps: list[dict[str, Any]]) -> PriceList:
    rates = {
        kind: Rate(Decimal(given[kind]), tuple((step["above"], Decimal(step[kind])) for step in steps if kind in step))
        for kind in RATE_KINDS
        if kind in given
    }
    return PriceList(rates, given.get("from"))


def _shares(standard: list[PriceList], share: Decimal) -> Iterator[PriceList]:
    """The standard lists at a share of their prices, the latest first: of a tier's lists the first in force counts."""
    for each in reversed(standard):
        rates: dict[RateKind, Rate] = {
            kind: Rate(rate.base * share, tuple((above, price * share) for above, price in rate.steps))
            for kind, rate in each.rates.items()
        }
        yield PriceList(rates, each.start)


def min_cached(name: str) -> int:
    """Minimum tokens of a prefix that the model ``provider/id`` caches; 0 if no minimum is known."""
    fitting = [(len(start), minimum) for start, minimum in MINIMUMS if name.startswith(start)]
    return max(fitting)[1] if fitting else 0
