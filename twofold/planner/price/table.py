"""The table inside: prices of Anthropic's, OpenAI's and Google's models, for machines without genai-prices.

``table.toml`` has the day they were checked, and for each model its price lists, the standard ones first. A list names
dollars of a million tokens by kind, and a list with ``above`` those of longer prompts than that, for the list before
it. ``from`` is the day a list begins, ``tier`` whose it is, and ``of`` makes every price of a tier that part of the
standard one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from twofold.planner.price.catalog import Catalog, catalog_of
from twofold.planner.price.rates import RATE_KINDS, ApiModel, PriceList, Rate, RateKind, Tier


@lru_cache(maxsize=1)
def known_catalog() -> Catalog:
    """Prices of genai-prices where it is installed (the extra ``plan``), else of the table inside."""
    if find_spec("genai_prices") is None:
        return read_table()
    from twofold.planner.price.published import read_published  # noqa: PLC0415 - start-up time

    return read_published()


def read_table() -> Catalog:
    """The table that comes with Twofold."""
    return parse_table(files("twofold.planner.price").joinpath("table.toml").read_text(encoding="utf-8"))


def parse_table(text: str) -> Catalog:
    """A table in that form."""
    table = tomllib.loads(text, parse_float=Decimal)
    checked: date = table.pop("checked")
    source: str = table.pop("source")
    models = (_model(provider, id, lists) for provider, found in table.items() for id, lists in found.items())
    return catalog_of(models, f"{source}, checked on {checked}", checked)


def _model(provider: str, id: str, given: list[dict[str, Any]]) -> ApiModel:
    standard: list[PriceList] = []
    tiers: dict[Tier, tuple[PriceList, ...]] = {}
    for index, each in enumerate(given):
        if "above" in each:
            continue
        steps = list(takewhile(lambda later: "above" in later, given[index + 1 :]))
        if "tier" not in each:
            standard.append(_list(each, steps))
        else:
            found = tuple(_shares(standard, each["of"])) if "of" in each else (_list(each, steps),)
            tiers[each["tier"]] = tiers.get(each["tier"], ()) + found
    return ApiModel(provider, id, tuple(standard), tiers)


def _list(given: Mapping[str, Any], steps: list[dict[str, Any]]) -> PriceList:
    rates = {
        kind: Rate(Decimal(given[kind]), tuple((step["above"], Decimal(step[kind])) for step in steps if kind in step))
        for kind in RATE_KINDS
        if kind in given
    }
    return PriceList(rates, given.get("from"))


def _shares(standard: list[PriceList], share: Decimal) -> Iterator[PriceList]:
    """The standard lists at a part of their prices, the latest first: of a tier's lists the first in force counts."""
    for each in reversed(standard):
        rates: dict[RateKind, Rate] = {
            kind: Rate(rate.base * share, tuple((above, price * share) for above, price in rate.steps))
            for kind, rate in each.rates.items()
        }
        yield PriceList(rates, each.start)
