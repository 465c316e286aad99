"""The document of an explanation: what ``twofold explain --json`` prints and ``POST /v1/twofold/explain`` returns.

Seconds, bytes, factors (above 1 is better) and shares from 0 to 1; null is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.planner.documents import ChartReply, CitedNumber, Number
from twofold.planner.explain.picture import RooflineDot
from twofold.planner.explain.rank import LeverOutcome, Turned
from twofold.planner.explain.scenario import Figures, Goal, Limit, Phase, PhaseName, UniformScenario

SCHEMA: Final = "twofold.explain/1"


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

    @classmethod
    def of(cls, scenario: UniformScenario) -> Self:
        case, constants = scenario.case, scenario.predictor.constants
        return cls(
            words=describe(scenario),
            model=scenario.shape.name,
            hardware=scenario.predictor.machine.name,
            weights=scenario.weights.name,
            kv=scenario.setup.kv.name,
            tp=scenario.setup.tp,
            input_tokens=case.prompt,
            cached_tokens=case.cached,
            output_tokens=case.output,
            batch=case.concurrency,
            chunk=case.chunk,
            constants={name: CitedNumber(**each.document()) for name, each in constants.values().items()},
            error=None if constants.error is None else float(constants.error),
        )


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

    @classmethod
    def of(cls, phase: Phase) -> Self:
        return cls(
            name=phase.name,
            seconds=phase.seconds,
            actual_s=phase.actual,
            predicted_s=phase.predicted,
            prediction_error=phase.error,
            floor_s=phase.floor,
            share=phase.share,
            bound=phase.bound,
            parts_s=None if phase.parts is None else PartSeconds(**phase.parts._asdict()),
            why=phase.why or None,
        )


class ExplainReply(ReplyObject, kw_only=True):
    """Where the time of a request goes, its floor, and levers. ``scenario`` and ``figures`` include the levers that are
    ``turned``, and are null for a request of unknown model or machine; ``before`` are the figures without these levers,
    null if none is turned."""

    schema: Literal["twofold.explain/1"] = SCHEMA
    title: str
    goal: Goal
    scenario: ExplainedScenario | None = None
    seconds: float
    predicted_s: Number
    floor_s: Number
    phases: list[ExplainedPhase]
    figures: Figures | None = None
    turned: Sequence[Turned] = ()
    before: Figures | None = None
    roofline: Sequence[RooflineDot] = ()
    chart: ChartReply | None = None
    levers: Sequence[LeverOutcome] = ()
    notes: list[str]


def describe(scenario: UniformScenario) -> str:
    """llama-3-70b (bf16, KV bf16) on 4 × h100: 2,000 prompt tokens, 300 output tokens, concurrency 16."""
    case, setup = scenario.case, scenario.setup
    devices = f"{setup.tp} × " if setup.tp > 1 else ""
    cached = f" ({case.cached:,} cached)" if case.cached else ""
    chunk = f", chunks of {case.chunk:,}" if case.chunk else ""
    stored = f"{scenario.shape.name} ({scenario.weights.name}, KV {setup.kv.name})"
    asked = f"{case.prompt:,} prompt tokens{cached}, {case.output:,} output tokens, concurrency {case.concurrency:,}"
    return f"{stored} on {devices}{scenario.predictor.machine.name}: {asked}{chunk}"
