"""``twofold price``, ``twofold lifetime`` and ``twofold crossover``: the cost of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from twofold.cli.console import print_json, print_lines
from twofold.cli.hardware import named_machine
from twofold.cli.options import FLAG, Json
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import find_kv_format
from twofold.core.request import TimeToLive
from twofold.observe.billing import MachinePrices
from twofold.planner.count.crossover import Crossovers
from twofold.planner.count.setting import Setting
from twofold.planner.price.catalog import ApiModel, known_catalog
from twofold.planner.price.lifetime import better_than, lifetime_document, lifetime_lines
from twofold.planner.price.own import OwnMachines, hourly, own_cost
from twofold.planner.price.workload import Compression, TracedCost, Workload, api_cost, traced_cost
from twofold.planner.shapes.known import resolve_shape

DEFAULTS: Final[Mapping[str, float]] = {"input_tokens": 1000, "output_tokens": 300, "requests_per_day": 1000.0}
TierName = Literal["default", "batch", "flex", "priority", "fast"]


@Parameter(name="*", group="Workload")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """The requests, their rate, and options that make them cheaper."""

    input_tokens: Annotated[
        int | None, Parameter(help="Prompt tokens per request, including cached ones (default: 1,000).")
    ] = None
    output_tokens: Annotated[int | None, Parameter(help="Output tokens per request (default: 300).")] = None
    requests_per_day: Annotated[
        float | None, Parameter(help="Requests per day, arriving at random (default: 1,000).")
    ] = None
    cached: Annotated[int | None, Parameter(help="Tokens of the common prefix to cache.")] = None
    session: Annotated[
        int | None,
        Parameter(help="Requests per session, each session with its own prefix (default: all share one prefix)."),
    ] = None
    trace: Annotated[Path | None, Parameter(help="Trace of requests instead: Azure, Mooncake or Twofold format.")] = (
        None
    )
    ttl: Annotated[TimeToLive, Parameter(help="Cache TTL.")] = "5m"
    tier: Annotated[TierName, Parameter(help="Service tier.")] = "default"
    batch: Annotated[bool, FLAG, Parameter(help="Use the batch tier.")] = False
    compress: Annotated[float | None, Parameter(help="Prompt compression ratio: report whether it pays off.")] = None
    compressor_price: Annotated[float, Parameter(help="Dollars per compressed prompt.")] = 0.0

    @property
    def paid_tier(self) -> TierName:
        """The tier that is paid for. Raises ParameterError for --batch with another --tier."""
        if self.batch and self.tier not in ("default", "batch"):
            raise ParameterError("--batch implies the tier batch.", param="tier", hint="Remove --tier or --batch.")
        return "batch" if self.batch else self.tier

    def given(self) -> dict[str, Any]:
        """Fields of ``Workload`` that flags set."""
        values = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests_per_day": self.requests_per_day,
            "prefix_tokens": self.cached,
            "session": self.session,
        }
        return {name: value for name, value in values.items() if value is not None}

    def workload(self) -> Workload:
        """Raises ParameterError if more tokens are cached than a prompt has."""
        values = {**DEFAULTS, **self.given()}
        if self.cached is not None and self.cached > values["input_tokens"]:
            raise ParameterError(
                f"--cached {self.cached:,} exceeds the {values['input_tokens']:,} tokens of a prompt.",
                param="cached",
                hint="Raise --input-tokens, which includes the cached tokens, or lower --cached.",
            )
        return Workload(**values, ttl=self.ttl, tier=self.paid_tier)

    def traced(self, model: ApiModel, at: datetime) -> TracedCost | None:
        """The cost of the trace, or None without one. Raises ParameterError if other flags describe requests too."""
        if self.trace is None:
            return None
        from twofold.bench.load.trace import read_trace  # noqa: PLC0415

        if self.given():
            raise ParameterError(
                "A trace sets the lengths and shared prefixes of its requests.",
                param="trace",
                hint="Remove --trace, or the flags that describe requests.",
            )
        return traced_cost(model, read_trace(self.trace), self.ttl, at, self.paid_tier)


@Parameter(name="*", group="Your own hardware")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOptions:
    """The same workload on your own hardware."""

    hardware: Annotated[
        str | None, Parameter(help="Hardware to compare with, such as h100; this: the local machine.")
    ] = None
    own_model: Annotated[str, Parameter(help="Model to run there: known name, GGUF file or config.json.")] = (
        "llama-3-70b"
    )
    tp: Annotated[int, Parameter(help="Tensor-parallel size.")] = 1
    weights: Annotated[str | None, Parameter(help="Weight format, such as fp8 or int4 (default: the model's own).")] = (
        None
    )
    kv: Annotated[str, Parameter(help="KV cache format.")] = "bf16"
    batch_size: Annotated[int | None, Parameter(help="Sequences per decode step (default: what fits).")] = None
    price_per_hour: Annotated[float | None, Parameter(help="Dollars per machine and hour (default: the table's).")] = (
        None
    )
    watts: Annotated[float | None, Parameter(help="Watts per machine (default: the maker's).")] = None
    price_per_kwh: Annotated[float | None, Parameter(help="Dollars per kilowatt-hour.")] = None
    capital: Annotated[float | None, Parameter(help="Purchase price per machine in dollars.")] = None
    years: Annotated[float, Parameter(help="Years of use.")] = 4.0
    busy_share: Annotated[float, Parameter(help="Utilization: share of hours that serve requests.")] = 1.0

    def machines(self) -> OwnMachines | None:
        """The machines, or None without --hardware. Raises ParameterError for unknown names and invalid values."""
        if self.hardware is None:
            return None
        shape = resolve_shape(self.own_model, self.weights)
        machine = named_machine(self.hardware, shape, self.own_model)
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
        return OwnMachines(shape, machine, prices, Setting(tp=self.tp, kv=find_kv_format(self.kv)), self.batch_size)


def price(
    model: Annotated[str, Parameter(help="API model, such as claude-sonnet-4-6 or openai/gpt-5.")],
    /,
    *,
    json: Json = False,
    workload: WorkloadOptions = WorkloadOptions(),
    own: OwnOptions = OwnOptions(),
) -> None:
    """Price a workload at an API, and on your own hardware."""
    from twofold.planner.price import report  # noqa: PLC0415 - start-up time

    machines, catalog, at = own.machines(), known_catalog(), datetime.now(UTC)
    api_model, tier, ratio = catalog.find(model), workload.paid_tier, workload.compress
    compression = None if ratio is None else Compression(ratio, workload.compressor_price)
    traced = workload.traced(api_model, at)
    requests = workload.workload() if traced is None else traced.workload(tier)
    api = api_cost(api_model, requests, at)
    per_request = float(api.per_request) if traced is None else traced.per_request  # of a trace: the mean
    ours = None if machines is None else (machines, own_cost(machines, requests), per_request)
    if json:
        found = report.price_document(api, catalog, at, traced=traced, compression=compression, own=ours)
        print_json(found)
        return
    lines = [*report.price_lines(api_model, catalog, requests.input_tokens, at, requests.tier)]
    lines += report.api_lines(api, at) if traced is None else report.trace_lines(traced, api)
    if compression is not None:
        lines += report.compression_lines(api, compression)
    if ours is not None:
        lines += report.own_lines(*ours)
    print_lines(lines)


def lifetime(
    *,
    parameters: Annotated[float, Parameter(show_default=False)] = 13e9,
    served_tokens: Annotated[float, Parameter(show_default=False)] = 2e12,
    json: Json = False,
) -> None:
    """Find the model size and training with the lowest total cost of training and serving.

    Parameters
    ----------
    parameters
        Model size (default: 13e9); the target is the loss of its Chinchilla-optimal training.
    served_tokens
        Prompt and output tokens served over its lifetime (default: 2e12).
    """
    given, best = better_than(parameters, served_tokens)
    if json:
        print_json(lifetime_document(given, best))
    else:
        print_lines(lifetime_lines(given, best))


def crossover(
    model: str = "llama-3-70b",
    /,
    *,
    hardware: str = "h100",
    tp: int = 1,
    weights: str | None = None,
    kv: str = "bf16",
    cliff: int | None = None,
    json: Json = False,
) -> None:
    """Report the context and batch from which the KV cache outweighs weights or arithmetic.

    Parameters
    ----------
    model
        Known name such as llama-3-70b, GGUF file or config.json.
    hardware
        Hardware, such as h100; this: the local machine.
    tp
        Tensor-parallel size.
    weights
        Weight format, such as fp8 or int4.
    kv
        KV cache format.
    cliff
        Context length above which an API charges more: report what that implies.
    """
    shape = resolve_shape(model, weights)
    found = Crossovers.of(shape, named_machine(hardware, shape, model), Setting(tp=tp, kv=find_kv_format(kv)), cliff)
    if json:
        print_json(found.document())
    else:
        print_lines(found.lines())


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(repr(float(number)))
