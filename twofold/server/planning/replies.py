"""The documents of the planner's endpoints, declared for the API's document; ``planner`` writes them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.planner.explain.rank import Status
from twofold.planner.explain.scenario import Goal, Limit, PhaseName

Number: TypeAlias = float | None
PlanStatus: TypeAlias = Literal["queued", "running", "done", "failed"]


class CitedNumber(ReplyObject):
    """A number with its source."""

    value: float
    source: str


class ExplainedScenario(ReplyObject):
    """What is explained: a model on a machine, and equal requests. ``error``: of the constants' predictions."""

    words: str
    model: str
    hardware: str
    weights: str
    kv: str
    tp: NonNegativeInt
    input_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    batch: NonNegativeInt
    chunk: NonNegativeInt | None
    constants: dict[str, CitedNumber]
    error: Number


class PartSeconds(ReplyObject):
    """Seconds of a phase by cause."""

    weights: float
    arithmetic: float
    kv: float
    links: float
    overhead: float


class ExplainedPhase(ReplyObject):
    """A phase: ``seconds`` as measured, or else as predicted; ``floor_s`` is the least that the machine needs."""

    name: PhaseName
    seconds: float
    actual_s: Number
    predicted_s: Number
    prediction_error: Number
    floor_s: Number
    share: Number
    bound: Limit | None
    parts_s: PartSeconds | None
    why: str | None


class Figures(ReplyObject):
    """Seconds, output tokens a second and device, bytes, and the sequences that fit in memory. A request of one output
    token has no ``tpot`` and no ``gap``."""

    ttft: float
    tpot: Number
    e2e: float
    gap: Number
    throughput: float
    memory: float
    sequences: NonNegativeInt


class Turned(ReplyObject):
    """A lever that is turned, or why it cannot be."""

    lever: str
    what: str
    why: str


class RooflineDot(ReplyObject):
    """A phase in the roofline: FLOPs a byte, FLOPs a second."""

    name: str
    intensity: float
    speed: float


class ChartAxis(ReplyObject):
    """An axis; ``form`` names the format of its values."""

    label: str
    kind: Literal["linear", "log"]
    form: str
    low: Number
    high: Number
    ticks: NonNegativeInt
    tight: bool
    downwards: bool


class ChartReply(ReplyObject):
    """A chart as data: marks Line, StepLine, Dots, Spans, Guide and Label."""

    title: str
    note: str
    x: ChartAxis
    y: ChartAxis
    marks: list[dict[str, Any]]


class LeverOutcome(ReplyObject):
    """A lever, applied alone: ``gains`` are factors above 1 that are better; ``benchmark`` is what the engine's
    benchmarks measured of it, empty if nothing."""

    lever: str
    status: Status
    helps: list[PhaseName]
    what: str | None
    gains: dict[str, float]
    saves_s: dict[str, float]
    after: Figures | None
    why: str
    costs: str
    measured: dict[str, Any] | None
    benchmark: str


class ExplainReply(ReplyObject, kw_only=True):
    """Where the time of a request goes, its floor, and levers."""

    schema: Literal["twofold.explain/1"]
    title: str
    goal: Goal
    scenario: ExplainedScenario | None
    seconds: float
    predicted_s: Number
    floor_s: Number
    phases: list[ExplainedPhase]
    figures: Figures | None
    turned: list[Turned]
    before: Figures | None
    roofline: list[RooflineDot]
    chart: ChartReply | None
    levers: list[LeverOutcome]
    notes: list[str]


class CurvePoint(ReplyObject):
    """A batch on a machine. ``tpot_s`` is null for completions of one token, ``dollars_per_million`` output tokens
    without a price."""

    batch: NonNegativeInt
    ttft_s: float
    tpot_s: Number
    e2e_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    dollars_per_million: Number


class CurveErrors(ReplyObject):
    """Mean relative errors of predictions; null if not measured."""

    ttft: Number
    tpot: Number


class CurveOfMachine(ReplyObject):
    """The batches that fit on a machine."""

    hardware: str
    tp: NonNegativeInt
    price_per_hour: Number
    error: CurveErrors
    points: list[CurvePoint]


class CurveReply(ReplyObject):
    """Pace against cost."""

    schema: Literal["twofold.curve/1"]
    model: str
    curves: list[CurveOfMachine]


class PriceOption(ReplyObject):
    """Dollars with one way of caching; ``ttl`` is null without a cache."""

    ttl: str | None
    per_request: float
    per_day: float
    per_month: float


class PriceLine(ReplyObject):
    """A line of a bill."""

    kind: str
    tokens: NonNegativeInt
    per_million: float
    amount: float


class PriceBills(ReplyObject):
    """Bills of a request without a cache, of one that writes it, and of one that reads it."""

    fresh: list[PriceLine]
    miss: list[PriceLine]
    hit: list[PriceLine]


class PriceReply(ReplyObject, kw_only=True):
    """A workload at an API, and on own hardware."""

    schema: Literal["twofold.price/1"]
    model: str
    tier: str
    prices_from: str
    at: str
    per_million: dict[str, NonNegativeFloat]
    context: NonNegativeInt | None
    cliffs: list[NonNegativeInt]
    other_charges: list[str]
    workload: dict[str, Number]
    caching: dict[str, str | Number]
    cost: PriceOption
    options: list[PriceOption]
    bills: PriceBills
    half_answers_save: float
    cliff: dict[str, float] | None
    notes: list[str]
    chart: ChartReply | None
    compression: dict[str, Number] | UnsetType = UNSET
    own: dict[str, str | Number] | UnsetType = UNSET


class PlanReply(ReplyObject):
    """The result of ``twofold plan --json``."""

    schema: Literal["twofold.plan/1"]
    slo: dict[str, Number]
    traffic: dict[str, float]
    tried: NonNegativeInt
    plans: list[dict[str, Any]]
    frontier: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    offers: list[dict[str, Any]]
    chart: ChartReply | None


class PlanError(ReplyObject):
    """Why a plan failed."""

    message: str
    hint: str | None


class PlanJobReply(ReplyObject, kw_only=True):
    """A plan as a job."""

    id: str
    object: Literal["twofold.plan"] = "twofold.plan"
    status: PlanStatus
    created_at: NonNegativeFloat
    error: PlanError | None
    result: PlanReply | None


class PlanDeleted(ReplyObject):
    """A deleted plan."""

    id: str
    object: Literal["twofold.plan"] = "twofold.plan"
    deleted: bool = True
