"""``twofold price``, ``twofold lifetime`` and ``twofold crossover``: the cost of tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from twofold.cli.console import print_json, print_lines
from twofold.cli.hardware import LocalNames
from twofold.cli.options import FLAG, Json
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import find_kv_format
from twofold.core.request import TimeToLive
from twofold.planner.count.crossover import Crossovers
from twofold.planner.count.setting import Setting
from twofold.planner.price.catalog import Tier
from twofold.planner.price.document import price_document
from twofold.planner.price.lifetime import better_than, lifetime_document, lifetime_lines
from twofold.planner.price.question import SIZES, OwnHardware, PriceQuestion

if TYPE_CHECKING:
    from twofold.bench.load.trace import Trace


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
    tier: Annotated[Tier, Parameter(help="Service tier.")] = "default"
    batch: Annotated[bool, FLAG, Parameter(help="Use the batch tier.")] = False
    compress: Annotated[float | None, Parameter(help="Prompt compression ratio: report whether it pays off.")] = None
    compressor_price: Annotated[float, Parameter(help="Dollars per compressed prompt.")] = 0.0

    @property
    def paid_tier(self) -> Tier:
        """The tier that is paid for. Raises ParameterError for --batch with another --tier."""
        if self.batch and self.tier not in ("default", "batch"):
            raise ParameterError("--batch implies the tier batch.", param="tier", hint="Remove --tier or --batch.")
        return "batch" if self.batch else self.tier

    def values(self) -> dict[str, Any]:
        """Fields of the question. Raises ParameterError for flags that contradict each other."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if fields.pop("trace", None) and not fields.keys().isdisjoint(("cached", *SIZES)):
            raise ParameterError(
                "A trace sets the lengths and shared prefixes of its requests.",
                param="trace",
                hint="Remove --trace, or the flags that describe requests.",
            )
        del fields["batch"]
        return fields | {"tier": self.paid_tier}

    def read_trace(self) -> Trace | None:
        if self.trace is None:
            return None
        from twofold.bench.load.trace import read_trace  # noqa: PLC0415 - start-up time

        return read_trace(self.trace)


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

    def question(self) -> OwnHardware | None:
        """Machines to compare with; None without --hardware."""
        fields = asdict(self)
        return None if self.hardware is None else OwnHardware(model=fields.pop("own_model"), **fields)


def price(
    model: Annotated[str, Parameter(help="API model, such as claude-sonnet-4-6 or openai/gpt-5.")],
    /,
    *,
    json: Json = False,
    workload: WorkloadOptions = WorkloadOptions(),
    own: OwnOptions = OwnOptions(),
) -> None:
    """Price a workload at an API, and on your own hardware."""
    question = PriceQuestion(model=model, own=own.question(), **workload.values())
    if workload.cached is not None and workload.cached > question.input_tokens:
        raise ParameterError(
            f"--cached {workload.cached:,} exceeds the {question.input_tokens:,} tokens of a prompt.",
            param="cached",
            hint="Raise --input-tokens, which includes the cached tokens, or lower --cached.",
        )
    answer = question.answer(LocalNames(), workload.read_trace())
    if json:
        print_json(price_document(answer))
    else:
        print_lines(answer.lines())


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
    names = LocalNames()
    spec = names.spec(model, weights)
    machine = names.machine(hardware, spec, model).machine
    found = Crossovers.of(spec, machine, Setting(tp=tp, kv=find_kv_format(kv)), cliff)
    if json:
        print_json(found.document())
    else:
        print_lines(found.lines())
