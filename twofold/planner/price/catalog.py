"""API models by name, with their prices: those of genai-prices if installed, else of the table that comes with Twofold.

A name is an id (``claude-sonnet-4-6``), or a provider and an id (``openai/gpt-5``), in any case, with dots, dashes or
spaces, with or without a date at its end.

``table.toml`` has Anthropic's, OpenAI's and Google's models, the day on which they were checked, and for each model its
price lists, the standard ones first. A list has dollars of a million tokens by kind; a list with ``above`` has those of
longer prompts, for the list before it. ``from`` is the day a list begins, ``tier`` its tier, and ``of`` a share of the
standard prices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import takewhile
from typing import Any, Final

from twofold.core.errors import ModelNotFoundError, closest_match
from twofold.planner.price.rates import MAKERS, RATE_KINDS, ApiModel, PriceList, Rate, RateKind, Tier

_DATE: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$")


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
"""Shortest prefixes that are cached, by the start of a model's name; the longest match counts. A successor has its
predecessor's until its provider publishes another."""


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
        more = "" if self.guess else " More have them with: pip install genai-prices."
        return ModelNotFoundError(
            f"No price is known for {name!r:.60}.", hint=hint + f"Prices are from {self.source}.{more}"
        )


def _names(keys: Iterable[str]) -> dict[str, str]:
    """Keys by their plain names, and by these without a date where no other model has that name."""
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
    """Prices of genai-prices, which must be installed."""
    from twofold.planner.price import published  # noqa: PLC0415 - start-up time

    models = {model.name: model for model in published.published_models()}
    return Catalog(models, published.published_source(), None, published.published_key)


def read_table() -> Catalog:
    """The table that comes with Twofold."""
    return parse_table(files("twofold.planner.price").joinpath("table.toml").read_text(encoding="utf-8"))


def parse_table(text: str) -> Catalog:
    """The catalog of a table in the form of ``table.toml``."""
    table = tomllib.loads(text, parse_float=Decimal)
    checked: date = table.pop("checked")
    source: str = table.pop("source")
    models = (_model(provider, id, lists) for provider, found in table.items() for id, lists in found.items())
    return Catalog({model.name: model for model in models}, f"{source}, checked on {checked}", checked)


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
    """The standard lists at a share of their prices, the latest first: of a tier's lists the first in force counts."""
    for each in reversed(standard):
        rates: dict[RateKind, Rate] = {
            kind: Rate(rate.base * share, tuple((above, price * share) for above, price in rate.steps))
            for kind, rate in each.rates.items()
        }
        yield PriceList(rates, each.start)


def min_cached(name: str) -> int:
    """Tokens of the shortest prefix that the model ``provider/id`` caches; 0 if none is known."""
    fitting = [(len(start), least) for start, least in MINIMUMS if name.startswith(start)]
    return max(fitting)[1] if fitting else 0
