"""Prices of the installed genai-prices, as records of this room: text tokens of every provider.

It is read once and computes nothing here: bills are those of ``observe.accounting.bill``, exact and line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from importlib.metadata import version
from typing import Any, Final

from genai_prices.data import providers
from genai_prices.data_snapshot import DataSnapshot

from twofold.planner.price.rates import MAKERS, RATE_KINDS, TIERS, ApiModel, PriceList, Rate, RateKind, Tier

_CONTEXTS: Final = ("processing", "service_tier", "speed")
"""Fields of a request that name its tier, in genai-prices."""


def published_source() -> str:
    """The name and version of the package."""
    return f"genai-prices {version('genai-prices')}"


def published_models() -> Iterator[ApiModel]:
    """Every model that genai-prices has text prices of."""
    models = (_model(provider.id, model) for provider in providers for model in provider.models)
    return (each for each in models if each.lists)


def published_key(name: str) -> str | None:
    """The key of a name by genai-prices' own rules, which know what providers call their models."""
    provider, _, rest = name.rpartition("/")
    snapshot = DataSnapshot(providers=providers, from_auto_update=False)
    for maker in (provider,) if provider else (*MAKERS, None):
        try:
            found, model = snapshot.find_provider_model(rest, None, maker, None)
        except LookupError:
            continue
        owner = next(each.id for each in (found, *providers) if any(model is other for other in each.models))
        return f"{owner}/{model.id}" if _model(owner, model).lists else None
    return None


def _model(provider: str, model: Any) -> ApiModel:
    given = model.prices if isinstance(model.prices, list) else [model]
    lists = tuple(each for each in map(_list, given) if "input" in each.rates)
    tiers: dict[Tier, list[PriceList]] = {}
    for variant in model.price_variants or ():
        tier = _tier(variant.when)
        changed = _list(variant)
        if tier is not None and changed.rates:
            tiers.setdefault(tier, []).append(changed)
    return ApiModel(
        provider=provider,
        id=model.id,
        lists=lists,
        tiers={tier: tuple(found) for tier, found in tiers.items()},
        context=model.context_window,
        other_charges=tuple(sorted({name for each in given for name in _others(each.prices)})),
    )


def _tier(when: dict[str, str]) -> Tier | None:
    context, value = next(iter(when.items()))
    known = len(when) == 1 and context in _CONTEXTS and value != "default"
    return next((tier for tier in TIERS if known and tier == value), None)


def _list(priced: Any) -> PriceList:
    rates = dict(_rates(priced.prices))
    constraint = getattr(priced, "constraint", None)
    start: date | None = getattr(constraint, "start_date", None)
    begin, end = getattr(constraint, "start_time", None), getattr(constraint, "end_time", None)
    return PriceList(rates, start, None if begin is None or end is None else (_utc(begin), _utc(end)))


def _utc(moment: time) -> time:
    """A time of day in UTC, which it is in already without an offset."""
    if moment.tzinfo is None:
        return moment
    return datetime.combine(date(1970, 1, 1), moment).astimezone(UTC).time()


def _rates(prices: Any) -> Iterator[tuple[RateKind, Rate]]:
    for kind in RATE_KINDS:
        price = vars(prices).get(f"{kind}_mtok")
        if price is not None:
            steps = tuple((tier.start, tier.price) for tier in getattr(price, "tiers", ()))
            yield kind, Rate(getattr(price, "base", price), steps)


def _others(prices: Any) -> Iterable[str]:
    """Charges that are not by text tokens, as ``web searches``."""
    known = {f"{kind}_mtok" for kind in RATE_KINDS}
    for name, price in vars(prices).items():
        if price is not None and name not in known and not name.startswith("_"):
            yield name.rpartition("_")[0].replace("_", " ")
