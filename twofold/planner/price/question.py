"""The question of ``twofold price`` and of POST /v1/twofold/price."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import find_kv_format
from twofold.core.request import TimeToLive
from twofold.observe.billing import MachinePrices
from twofold.planner.count.setting import Setting
from twofold.planner.names import Amount, Batch, Devices, MoreTokens, Name, Names, Tokens
from twofold.planner.price.catalog import Tier, known_catalog
from twofold.planner.price.own import OwnMachines, hourly, own_cost
from twofold.planner.price.report import PriceAnswer
from twofold.planner.price.workload import Compression, Workload, api_cost, traced_cost

if TYPE_CHECKING:
    from twofold.bench.load.trace import Trace


SIZES: Final = ("input_tokens", "output_tokens", "requests_per_day", "session")


class OwnHardware(RequestObject, kw_only=True):
    """The same workload on own hardware. Prices are dollars, of one machine each."""

    hardware: Name
    model: Name = "llama-3-70b"
    tp: Devices = 1
    weights: Name | None = None
    kv: Name = "bf16"
    batch_size: Batch | None = None
    price_per_hour: Amount | None = None
    watts: Amount | None = None
    price_per_kwh: Amount | None = None
    capital: Amount | None = None
    years: Annotated[float, Meta(gt=0, le=100)] = 4.0
    busy_share: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def machines(self, names: Names) -> OwnMachines:
        """Raises ParameterError for unknown names and invalid values, and ModelNotFoundError."""
        spec = names.spec(self.model, self.weights)
        machine = names.machine(self.hardware, spec, self.model).machine
        if not 0 < self.busy_share <= 1:
            raise ParameterError(
                f"--busy-share must be above 0 and at most 1, not {self.busy_share:g}.", param="busy_share"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ParameterError(f"--batch-size must be at least 1, not {self.batch_size}.", param="batch_size")
        paid = (self.price_per_hour, self.price_per_kwh, self.capital)
        per_hour = machine.price if paid == (None, None, None) else self.price_per_hour
        watts = machine.watts if self.watts is None and self.price_per_kwh is not None else self.watts
        price = hourly(
            _decimal(per_hour),
            watts=_decimal(watts),
            per_kwh=_decimal(self.price_per_kwh),
            capital=_decimal(self.capital),
            years=Decimal(repr(self.years)),
        )
        prices = MachinePrices(price, Decimal(repr(self.busy_share)))
        return OwnMachines(spec, machine, prices, Setting(tp=self.tp, kv=find_kv_format(self.kv)), self.batch_size)


class PriceQuestion(RequestObject, kw_only=True):
    """A workload at an API: equal requests, the first tokens of which are cached."""

    model: Name
    input_tokens: Tokens = 1000
    output_tokens: MoreTokens = 300
    requests_per_day: Annotated[float, Meta(gt=0, le=1e12)] = 1000.0
    cached: MoreTokens = 0
    session: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    ttl: TimeToLive = "5m"
    tier: Tier = "default"
    compress: Annotated[float, Meta(gt=1, le=1000, description="Prompt compression ratio.")] | None = None
    compressor_price: Amount = 0.0
    own: OwnHardware | None = None

    def answer(self, names: Names, trace: Trace | None = None) -> PriceAnswer:
        """The cost of the workload, or of a trace instead. Raises ParameterError, ModelNotFoundError, and ResourceError
        if the own hardware has no room for its model."""
        machines = None if self.own is None else self.own.machines(names)
        catalog, at = known_catalog(), datetime.now(UTC)
        model = catalog.find(self.model)
        compression = None if self.compress is None else Compression(self.compress, self.compressor_price)
        traced = None if trace is None else traced_cost(model, trace, self.ttl, at, self.tier)
        workload = self._workload() if traced is None else traced.workload(self.tier)
        api = api_cost(model, workload, at)
        per_request = float(api.per_request) if traced is None else traced.per_request  # of a trace: the mean
        own = None if machines is None else (machines, own_cost(machines, workload), per_request)
        return PriceAnswer(api, catalog, at, traced, compression, own)

    def _workload(self) -> Workload:
        sizes = {name: getattr(self, name) for name in SIZES}
        return Workload(**sizes, prefix_tokens=self.cached, ttl=self.ttl, tier=self.tier)


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(repr(float(number)))
