"""What a request would cost at the prices of other providers' models, for ``"twofold": {"compare_prices": […]}``.

Prices are those of the table that comes with Twofold, at the time of the request, without discounts of a tier. Tokens
count as they did here, but a cached or written prefix shorter than the minimum of the model counts as input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from twofold.core.errors import ModelNotFoundError, ParameterError
from twofold.observe.billing import Bill, TokenUsage, token_lines
from twofold.planner.price.catalog import ApiModel, Catalog, min_cached

CURRENCY: Final = "USD"


@dataclass(frozen=True, slots=True)
class ReferencePrices:
    """The models of a catalog."""

    catalog: Catalog

    @property
    def names(self) -> list[str]:
        return sorted(self.catalog.models)

    def find(self, names: Sequence[str]) -> list[ApiModel]:
        """The models of these names. Raises ParameterError for one without a known price, with the closest name."""
        try:
            return [self.catalog.find(name) for name in names]
        except ModelNotFoundError as error:
            raise ParameterError(str(error), param="twofold.compare_prices", hint=error.hint) from None

    def bills(self, models: Sequence[ApiModel], usage: TokenUsage, at: datetime) -> dict[str, Bill]:
        """The bill of these tokens at each of the models, by name."""
        return {model.name: _bill(model, usage, at) for model in models}


def _bill(model: ApiModel, usage: TokenUsage, at: datetime) -> Bill:
    if usage.prompt - usage.fresh < min_cached(model.name):
        usage = TokenUsage(fresh=usage.prompt, output=usage.output)
    prices = model.prices(usage.prompt, at)
    return Bill(CURRENCY, "default", Decimal(1), tuple(token_lines(usage, prices, Decimal(1))))
