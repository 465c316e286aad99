"""Models by name, with their prices.

A name is an id (``claude-sonnet-4-6``), or a provider and an id (``openai/gpt-5``), in any case, with dots, dashes or
spaces, with or without a date at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from twofold.core.errors import ModelNotFoundError, closest_match
from twofold.planner.price.rates import ApiModel

MAKERS: Final = ("anthropic", "openai", "google")
"""Providers that sell their own models come first where a name has no provider."""
_DATE: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models by ``provider/id``. ``source`` and ``checked`` say whose prices these are, and of which day.

    ``guess`` finds what a provider calls a model otherwise: its key here, or None.
    """

    models: Mapping[str, ApiModel]
    source: str
    checked: date | None
    guess: Callable[[str], str | None] | None = None
    _plain: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plain", _names(self.models))

    def find(self, name: str) -> ApiModel:
        """The model of that name. Raises ModelNotFoundError with the nearest names."""
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
    """Keys by their plain names; without a date too, where that is nobody's name."""
    names = {plain_name(key): key for key in keys}
    return {_DATE.sub("", plain): key for plain, key in names.items()} | names


def plain_name(name: str) -> str:
    """A name as names are compared."""
    return re.sub(r"[\s_.]+", "-", name.strip().lower())


def catalog_of(
    models: Iterable[ApiModel], source: str, checked: date | None, guess: Callable[[str], str | None] | None = None
) -> Catalog:
    """A catalog of these models."""
    return Catalog({model.name: model for model in models}, source, checked, guess)
