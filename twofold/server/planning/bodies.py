"""Bodies of the planner's endpoints. Their fields are named like the flags of ``twofold explain``, ``price`` and
``plan``; models and machines are names of the tables, or those of this server, and never paths."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.api.fields import FieldError
from twofold.core.request import TimeToLive
from twofold.planner.explain.scenario import Goal
from twofold.planner.predict.speculation import TextClass

HERE: Final = "this"
"""The name of the machine that the server runs on."""
MAX_CHUNKS: Final = 512
"""Maximum steps of a prompt: each is predicted, for each lever."""
MAX_POINTS: Final = 512
MAX_CONFIGURATIONS: Final = 600
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=80)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=2_000_000)]
MoreTokens: TypeAlias = Annotated[int, Meta(ge=0, le=2_000_000)]
Batch: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
Devices: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
Share: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Part: TypeAlias = Annotated[float, Meta(gt=0, le=0.99)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
Model: TypeAlias = Annotated[str, Meta(min_length=1, max_length=80, description="A served or a known model.")]


class ScenarioFields(RequestObject, kw_only=True):
    """A model, and the sizes of equal requests to it."""

    model: Model | None = None
    weights: Name | None = None
    kv: Name | None = None
    input_tokens: Tokens | None = None
    cached: MoreTokens | None = None
    output_tokens: Tokens | None = None
    loaded: MoreTokens | None = None
    chunk: Tokens | None = None

    def check_chunks(self) -> None:
        """Raises FieldError for chunks that cut the prompt into too many steps."""
        if self.chunk is not None and (self.input_tokens or 0) > MAX_CHUNKS * self.chunk:
            raise FieldError(
                f"Chunks of {self.chunk:,} tokens cut the prompt into more than {MAX_CHUNKS} steps.",
                param="chunk",
                hint=f"Use chunks of at least {-(-(self.input_tokens or 0) // MAX_CHUNKS):,} tokens.",
            )


class ExplainRequest(ScenarioFields, kw_only=True):
    """A scenario, or a request of this server with a scenario of its sizes; unset sizes are those of the request."""

    hardware: Name | None = None
    request: Annotated[str, Meta(min_length=1, max_length=128, description="The id of a recent request.")] | None = None
    prompt: Annotated[int, Meta(ge=0, le=63, description="Which prompt of the request.")] = 0
    batch: Batch | None = None
    disk_gbs: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    tp: Devices = 1
    goal: Goal = "e2e"
    levers: (
        Annotated[list[Name], Meta(max_length=32, description="Levers to turn before others are ranked.")] | None
    ) = None
    text: TextClass = "prose"
    acceptance: Part | None = None
    draft_cost: Annotated[float, Meta(ge=0, le=0.99)] | None = None
    keep: Part = 0.5
    scorer: Name | None = None
    shared: Part = 0.5

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        found = super().read(value)
        found.check_chunks()
        return found


class CurveMachine(RequestObject, kw_only=True):
    """Machines that run one replica. ``price_per_hour``: dollars of each, instead of the table's."""

    hardware: Name
    tp: Devices = 1
    price_per_hour: Amount | None = None


class CurveRequest(ScenarioFields, kw_only=True):
    """Machines, and batches on each."""

    machines: Annotated[list[CurveMachine], Meta(min_length=1, max_length=16)]
    batches: Annotated[list[Batch], Meta(min_length=1, max_length=64)] | None = None

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        found = super().read(value)
        found.check_chunks()
        points = len(found.machines) * len(found.batches or ())
        if points > MAX_POINTS:
            raise FieldError(
                f"{points} points are too many: at most {MAX_POINTS} are predicted at once.",
                param="batches",
                hint="Name fewer machines or batches.",
            )
        return found


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
    busy_share: Share = 1.0


class PriceRequest(RequestObject, kw_only=True):
    """A workload at an API: equal requests, the first tokens of which are cached."""

    model: Name
    input_tokens: Tokens = 1000
    output_tokens: MoreTokens = 300
    requests_per_day: Annotated[float, Meta(gt=0, le=1e12)] = 1000.0
    cached: MoreTokens = 0
    session: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    ttl: TimeToLive = "5m"
    tier: Literal["default", "batch", "flex", "priority", "fast"] = "default"
    compress: Annotated[float, Meta(gt=1, le=1000, description="Prompt compression ratio.")] | None = None
    compressor_price: Amount = 0.0
    own: OwnHardware | None = None


class PlanSlo(RequestObject, kw_only=True):
    """Maximum seconds of a measure, and the share of requests that must meet them all."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None
    attainment: Annotated[float, Meta(ge=0.5, le=0.9999)] = 0.9


class PlanRequest(RequestObject, kw_only=True):
    """Traffic, objectives, and alternatives of which every combination is tried."""

    models: Annotated[list[Name], Meta(min_length=1, max_length=4)]
    hardware: Annotated[list[Name], Meta(min_length=1, max_length=8)]
    rate: Annotated[float, Meta(gt=0, le=1e5, description="Requests per second.")]
    input_tokens: Tokens = 1024
    output_tokens: Tokens = 256
    shared_prefix: Annotated[float, Meta(ge=0, le=0.99)] = 0.0
    slo: PlanSlo | None = None
    tp: Annotated[list[Devices], Meta(min_length=1, max_length=8)] | None = None
    weights: Annotated[list[Name], Meta(min_length=1, max_length=6)] | None = None
    kv: Annotated[list[Name], Meta(min_length=1, max_length=6)] | None = None
    chunks: Annotated[list[Tokens], Meta(min_length=1, max_length=6)] | None = None
    split: bool = True
    text: TextClass | None = None
    acceptance: Part | None = None
    drafts: Annotated[list[Annotated[int, Meta(ge=1, le=16)]], Meta(min_length=1, max_length=4)] | None = None
    draft: Name | None = None
    max_devices: Annotated[int, Meta(ge=1, le=65_536)] = 4096
    prices: Annotated[dict[Name, Amount], Meta(max_length=8)] | None = None
    show: Annotated[int, Meta(ge=1, le=50)] = 10
    simulate: bool = True

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        found = super().read(value)
        sizes = (found.models, found.hardware, found.tp or TP, found.weights or WEIGHTS, found.kv or KV)
        count = (len(found.chunks or CHUNKS) + found.split) * (1 + len(found.drafts or DRAFTS) * found.drafting)
        for each in sizes:
            count *= len(each)
        if count > MAX_CONFIGURATIONS:
            raise FieldError(
                f"{count:,} configurations are too many: at most {MAX_CONFIGURATIONS} are tried.",
                param="models",
                hint="Name fewer models, machines, formats or chunks.",
            )
        return found

    @property
    def drafting(self) -> bool:
        """Whether speculative decoding is tried."""
        return self.text is not None or self.acceptance is not None


TP: Final = (1, 2, 4, 8)
WEIGHTS: Final = ("stored", "fp8", "int4")
KV: Final = ("bf16", "fp8")
CHUNKS: Final = (512, 2048, 8192)
DRAFTS: Final = (1, 3, 5)
"""What is tried by default, as by ``twofold plan``."""
Values: TypeAlias = dict[str, Any]
