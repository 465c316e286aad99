"""``twofold price``, ``twofold lifetime`` and ``twofold crossover``: what tokens cost, and what decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from twofold.cli.console import answer, print_json
from twofold.cli.options import FLAG
from twofold.core.errors import ParameterError
from twofold.core.request import TimeToLive

if TYPE_CHECKING:
    from twofold.cost.price.compression import Compression
    from twofold.cost.price.own import OwnCost, OwnMachines
    from twofold.cost.price.rates import ApiModel
    from twofold.cost.price.traced import TracedCost
    from twofold.cost.price.workload import ApiCost, Workload

DEFAULTS: Final[Mapping[str, float]] = {"input_tokens": 1000, "output_tokens": 300, "requests_per_day": 1000.0}
TierName = Literal["default", "batch", "flex", "priority", "fast"]


@Parameter(name="*", group="Workload")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What is asked, how often, and what is done to make it cheaper."""

    input_tokens: Annotated[
        int | None, Parameter(help="Tokens of a prompt, cached ones included; 1,000 if left out.")
    ] = None
    output_tokens: Annotated[int | None, Parameter(help="Tokens of an answer; 300 if left out.")] = None
    requests_per_day: Annotated[
        float | None, Parameter(help="Requests that arrive at random in a day; 1,000 if left out.")
    ] = None
    cached: Annotated[
        int | None, Parameter(help="Tokens that all prompts begin with, and that the provider's cache is to keep.")
    ] = None
    session: Annotated[
        int | None,
        Parameter(help="Requests that share a prefix of their own, one after the other; all share one if left out."),
    ] = None
    trace: Annotated[
        Path | None, Parameter(help="A trace of real requests instead, of Azure's, Mooncake's or our format.")
    ] = None
    ttl: Annotated[TimeToLive, Parameter(help="For how long a prefix is kept without being read.")] = "5m"
    tier: Annotated[TierName, Parameter(help="The service tier.")] = "default"
    batch: Annotated[bool, FLAG, Parameter(help="Sends them in batches: the tier of that name.")] = False
    compress: Annotated[
        float | None, Parameter(help="Compresses prompts to one of so many tokens, and says whether that pays.")
    ] = None
    compressor_price: Annotated[float, Parameter(help="Dollars that compressing a prompt costs.")] = 0.0

    @property
    def paid_tier(self) -> TierName:
        """Raises ParameterError for a batch of another tier."""
        if self.batch and self.tier not in ("default", "batch"):
            raise ParameterError("A batch has a tier of its own.", param="tier", hint="Leave out --tier or --batch.")
        return "batch" if self.batch else self.tier

    def given(self) -> dict[str, Any]:
        """What was said of the requests, by the fields of ``Workload``."""
        said = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests_per_day": self.requests_per_day,
            "prefix_tokens": self.cached,
            "session": self.session,
        }
        return {name: value for name, value in said.items() if value is not None}

    def workload(self) -> Workload:
        from twofold.cost.price.workload import Workload  # noqa: PLC0415 - start-up time

        return Workload(**{**DEFAULTS, **self.given()}, ttl=self.ttl, tier=self.paid_tier)

    def traced(self, model: ApiModel, at: datetime) -> TracedCost | None:
        """What the trace costs; None where there is none. Raises ParameterError where flags describe requests too."""
        if self.trace is None:
            return None
        from twofold.cost.price.traced import traced_cost  # noqa: PLC0415 - start-up time
        from twofold.load.traces.read import read_trace  # noqa: PLC0415

        if self.given():
            raise ParameterError(
                "A trace says how long its requests are and what they share.",
                param="trace",
                hint="Leave out --trace, or the flags that describe requests.",
            )
        return traced_cost(model, read_trace(self.trace), self.ttl, at, self.paid_tier)

    def compression(self) -> Compression | None:
        from twofold.cost.price.compression import Compression  # noqa: PLC0415 - start-up time

        return None if self.compress is None else Compression(self.compress, self.compressor_price)


@Parameter(name="*", group="Own hardware")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions:
    """The same workload on machines of one's own."""

    hardware: Annotated[str | None, Parameter(help="A machine of the table, as h100; none if left out.")] = None
    own_model: Annotated[
        str, Parameter(help="What runs there: a name, as llama-3-70b, a GGUF file or a config.json.")
    ] = "llama-3-70b"
    tp: Annotated[int, Parameter(help="Machines that one copy of the model takes.")] = 1
    weights: Annotated[str | None, Parameter(help="Another format of the weights, as fp8 or int4.")] = None
    kv: Annotated[str, Parameter(help="Format of keys and values.")] = "bf16"
    batch_size: Annotated[int | None, Parameter(help="Sequences in a decode step; what fits if left out.")] = None
    price_per_hour: Annotated[
        float | None, Parameter(help="Dollars an hour of a machine; the table's, if it has one and nothing is given.")
    ] = None
    watts: Annotated[float | None, Parameter(help="Power of a machine; its maker's if left out.")] = None
    price_per_kwh: Annotated[float | None, Parameter(help="Dollars of a kilowatt-hour.")] = None
    capital: Annotated[float | None, Parameter(help="Dollars that a machine cost to buy.")] = None
    years: Annotated[float, Parameter(help="Years that it runs.")] = 4.0
    busy_share: Annotated[float, Parameter(help="The part of the hours in which requests run, and pay.")] = 1.0

    def machines(self) -> OwnMachines | None:
        """The machines; None where no hardware is named. Raises ParameterError for what is unknown or impossible."""
        if self.hardware is None:
            return None
        from twofold.cost.count.setting import Setting  # noqa: PLC0415 - start-up time
        from twofold.cost.hardware.known import find_machine  # noqa: PLC0415
        from twofold.cost.price.own import OwnMachines, hourly  # noqa: PLC0415
        from twofold.cost.prices import MachinePrices  # noqa: PLC0415
        from twofold.cost.shapes.find import resolve_shape  # noqa: PLC0415
        from twofold.cost.shapes.values import find_format  # noqa: PLC0415

        machine, shape = find_machine(self.hardware), resolve_shape(self.own_model)
        if self.weights is not None:
            shape = shape.stored_as(find_format(self.weights))
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
        return OwnMachines(shape, machine, prices, Setting(tp=self.tp, kv=find_format(self.kv)), self.batch_size)


def price(
    model: Annotated[str, Parameter(help="A model of an API, as claude-sonnet-4-6 or openai/gpt-5.")],
    /,
    *,
    json: Annotated[bool, FLAG, Parameter(help="Prints one JSON object.")] = False,
    workload: WorkloadOptions = WorkloadOptions(),
    own: OwnOptions = OwnOptions(),
) -> int:
    """Prices a workload at an API, and on hardware of one's own."""
    found = _Priced.of(model, workload, own.machines())
    if json:
        print_json(found.document())
    else:
        answer("".join(f"{line}\n" for line in found.lines()))
    return 0


@dataclass(frozen=True, slots=True)
class _Priced:
    """A workload with its price at an API, and on own machines where there are any; of a trace, the mean request."""

    api: ApiCost
    at: datetime
    machines: OwnMachines | None
    own: OwnCost | None
    compression: Compression | None
    traced: TracedCost | None

    @classmethod
    def of(cls, name: str, asked: WorkloadOptions, machines: OwnMachines | None) -> _Priced:
        from twofold.cost.price.catalog import known_catalog  # noqa: PLC0415 - start-up time
        from twofold.cost.price.workload import api_cost  # noqa: PLC0415

        at, model = datetime.now(UTC), known_catalog().find(name)
        traced = asked.traced(model, at)
        workload = asked.workload() if traced is None else traced.workload(asked.paid_tier)
        api = api_cost(model, workload, at)
        return cls(api, at, machines, _owned(machines, workload), asked.compression(), traced)

    @property
    def api_request(self) -> float:
        """What the API takes for the mean request."""
        return float(self.api.per_request) if self.traced is None else self.traced.per_request

    def document(self) -> dict[str, Any]:
        from twofold.cost.price.catalog import known_catalog  # noqa: PLC0415 - start-up time
        from twofold.cost.price.document import (  # noqa: PLC0415
            as_json,
            compression_as_json,
            own_as_json,
            traced_as_json,
        )

        if self.traced is None:
            found = as_json(self.api, known_catalog(), self.at)
        else:
            found = traced_as_json(self.traced, self.api, known_catalog(), self.at)
        if self.compression is not None:
            found["compression"] = compression_as_json(self.api, self.compression)
        if self.machines is not None and self.own is not None:
            found["own"] = own_as_json(self.machines, self.own, self.api_request)
        return found

    def lines(self) -> Iterator[str]:
        from twofold.cost.price.catalog import known_catalog  # noqa: PLC0415 - start-up time
        from twofold.cost.price.tell import (  # noqa: PLC0415
            tell_api,
            tell_compression,
            tell_own,
            tell_prices,
            tell_trace,
        )

        workload = self.api.workload
        yield from tell_prices(self.api.model, known_catalog(), workload.input_tokens, self.at, workload.tier)
        if self.traced is None:
            yield from tell_api(self.api, self.at)
        else:
            yield from tell_trace(self.traced, self.api)
        if self.compression is not None:
            yield from tell_compression(self.api, self.compression)
        if self.machines is not None and self.own is not None:
            yield from tell_own(self.machines, self.own, self.api_request)


def _owned(machines: OwnMachines | None, workload: Workload) -> OwnCost | None:
    if machines is None:
        return None
    from twofold.cost.price.own import own_cost, step_seconds  # noqa: PLC0415 - start-up time

    return own_cost(machines, workload, step_seconds(machines))


def lifetime(
    *,
    parameters: float = 13e9,
    served_tokens: float = 2e12,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Finds the model size and training that cost least when serving counts too.

    Parameters
    ----------
    parameters
        A model's size; the loss that Chinchilla's training gives it is to be reached.
    served_tokens
        Tokens, of prompts and answers, that it serves in its life.
    json
        Prints one JSON object.
    """
    from twofold.cost.lifetime import better_than, life_as_json, tell_lifetime  # noqa: PLC0415 - start-up time

    given, best = better_than(parameters, served_tokens)
    if json:
        print_json(life_as_json(given, best))
    else:
        answer("".join(f"{line}\n" for line in tell_lifetime(given, best)))
    return 0


def crossover(
    model: str = "llama-3-70b",
    /,
    *,
    hardware: str = "h100",
    tp: int = 1,
    weights: str | None = None,
    kv: str = "bf16",
    cliff: int | None = None,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Says from which context or batch on keys and values outweigh weights or arithmetic.

    Parameters
    ----------
    model
        A name, as llama-3-70b, a GGUF file or a config.json.
    hardware
        A machine of the table, as h100.
    tp
        Machines that share the model.
    weights
        Another format of the weights, as fp8 or int4.
    kv
        Format of keys and values.
    cliff
        A context from which an API is dearer: what that implies, if the model behind it is as large as this one.
    json
        Prints one JSON object.
    """
    from twofold.cost.count.setting import Setting  # noqa: PLC0415 - start-up time
    from twofold.cost.hardware.known import find_machine  # noqa: PLC0415
    from twofold.cost.price.crossover import Crossovers  # noqa: PLC0415
    from twofold.cost.shapes.find import resolve_shape  # noqa: PLC0415
    from twofold.cost.shapes.values import find_format  # noqa: PLC0415

    shape = resolve_shape(model)
    if weights is not None:
        shape = shape.stored_as(find_format(weights))
    found = Crossovers.of(shape, find_machine(hardware), Setting(tp=tp, kv=find_format(kv)), cliff)
    if json:
        print_json(found.document())
    else:
        answer("".join(f"{line}\n" for line in found.lines()))
    return 0


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(repr(float(number)))
