"""The questions of ``twofold explain`` and of POST /v1/twofold/explain and /curve: equal requests to a model on
machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from twofold.api.body import NonNegativeInt, ReplyObject, RequestObject
from twofold.core.errors import ModelNotFoundError, ParameterError
from twofold.core.kv_layout import find_kv_format
from twofold.core.model import ModelSpec
from twofold.planner.count.setting import Setting
from twofold.planner.documents import Number
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.report import Explanation, explain, requests_like, scenario_of
from twofold.planner.explain.scenario import Goal, Observed, UniformScenario
from twofold.planner.names import HERE, Amount, Batch, Devices, MoreTokens, Name, NamedMachine, Names, Part, Tokens
from twofold.planner.predict.constants import constants_for, errors_for
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.speculation import TextClass

CURVE_SCHEMA: Final = "twofold.curve/1"
BATCHES: Final = tuple(2**n for n in range(10))
HOUR_S: Final = 3600
REQUESTS: Final = Case(prompt=512, output=128)
"""The requests of a question that gives no sizes and has no measured request."""
Model = Annotated[str, Meta(min_length=1, max_length=80, description="A served or a known model.")]


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

    def requests(self, batch: int | None, like: Case = REQUESTS) -> Case:
        """Requests of these sizes; unset ones are those of ``like``. Raises ParameterError."""
        sizes = {
            "prompt": self.input_tokens,
            "output": self.output_tokens,
            "cached": self.cached,
            "loaded": self.loaded,
            "chunk": self.chunk,
            "concurrency": batch,
        }
        return replace(like, **{name: size for name, size in sizes.items() if size is not None})

    def setup(self, named: NamedMachine, tp: int) -> Setting:
        """How ``tp`` of these machines serve the model."""
        return replace(named.setup, tp=tp, kv=named.setup.kv if self.kv is None else find_kv_format(self.kv))

    def named_spec(self, names: Names) -> ModelSpec:
        """Raises ParameterError without a model, and what ``Names.spec`` raises."""
        if self.model is None:
            raise ParameterError(
                "There is nothing to explain.",
                param="model",
                hint="Name a model: twofold explain --model llama-3-70b --hardware h100 --tp 4, or give a record.",
            )
        return names.spec(self.model, self.weights)


class ExplainQuestion(ScenarioFields, kw_only=True):
    """A scenario, the metric by which levers are ranked, and assumptions about levers."""

    hardware: Name | None = None
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

    def answer(self, names: Names, observed: Observed | None = None) -> Explanation:
        """Explains the scenario, or a measured request: with predictions if this names a model, or a machine for the
        request's own model. Unset sizes are those of the request. Raises ParameterError and ModelNotFoundError."""
        spec = self.named_spec(names) if observed is None else self._spec_of(observed, names)
        if spec is None:
            return explain(None, observed, self.goal)
        named = names.machine(self.hardware or HERE, spec, self.model)
        requests = self.requests(self.batch, REQUESTS if observed is None else requests_like(observed))
        machine, setup = named.machine.with_disk(self.disk_gbs), self.setup(named, self.tp)
        scenario = scenario_of(spec, machine, requests, setup, named.constants)
        return explain(scenario, observed, self.goal, self._assumptions(names), self.levers or ())

    def _spec_of(self, observed: Observed, names: Names) -> ModelSpec | None:
        """The named model, or the request's if a machine is named; otherwise None."""
        if self.model is not None:
            return self.named_spec(names)
        if self.hardware is None or observed.model is None:
            return None
        try:
            return names.spec(observed.model, self.weights)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"The model of the request, {observed.model!r:.80}, is not a known model.",
                hint=f"Name it with --model. {error.hint}",
            ) from None

    def _assumptions(self, names: Names) -> Assumptions:
        scorer = None if self.scorer is None else names.spec(self.scorer)
        more: dict[str, Any] = {"draft": self.draft_cost, "keeps": self.keep, "scorer": scorer, "shared": self.shared}
        return Assumptions(text=self.text, acceptance=self.acceptance, **more)


class CurvePoint(ReplyObject):
    """A batch on a machine. ``tpot_s`` is null for completions of one token, ``dollars_per_million`` output tokens
    without a price; dollars are those of machines that are always busy."""

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


class CurveReply(ReplyObject, kw_only=True):
    """Pace against cost."""

    schema: Literal["twofold.curve/1"] = CURVE_SCHEMA
    model: str
    curves: list[CurveOfMachine]


class CurveMachine(RequestObject, kw_only=True):
    """Machines that run one replica. ``price_per_hour``: dollars of each, instead of the table's."""

    hardware: Name
    tp: Devices = 1
    price_per_hour: Amount | None = None


class CurveQuestion(ScenarioFields, kw_only=True):
    """Machines, and batches on each."""

    machines: Annotated[list[CurveMachine], Meta(min_length=1, max_length=16)]
    batches: Annotated[list[Batch], Meta(min_length=1, max_length=64)] | None = None

    def answer(self, names: Names) -> CurveReply:
        """Figures of each batch on each machine; batches that do not fit in memory are missing."""
        spec = self.named_spec(names)
        return CurveReply(model=spec.name, curves=[self._curve(each, spec, names) for each in self.machines])

    def _curve(self, machine: CurveMachine, spec: ModelSpec, names: Names) -> CurveOfMachine:
        named = names.machine(machine.hardware, spec, self.model)
        constants = constants_for(named.machine, spec)
        errors = errors_for(spec, named.machine, constants)
        price = named.machine.price if machine.price_per_hour is None else machine.price_per_hour
        predictor = Predictor(spec, named.machine, constants, self.setup(named, machine.tp))
        points = []
        for batch in sorted(set(self.batches or BATCHES)):
            scenario = UniformScenario(predictor, self.requests(batch))
            if batch > scenario.sequences:
                break
            prediction = scenario.prediction
            tokens = prediction.tokens_per_s
            points.append(
                CurvePoint(
                    batch=batch,
                    ttft_s=prediction.ttft,
                    tpot_s=prediction.tpot if scenario.further else None,
                    e2e_s=prediction.e2e,
                    tokens_per_s=tokens,
                    tokens_per_s_per_device=tokens / prediction.devices,
                    dollars_per_million=None if price is None else 1e6 * price * machine.tp / (tokens * HOUR_S),
                )
            )
        return CurveOfMachine(
            hardware=named.machine.name,
            tp=machine.tp,
            price_per_hour=None if price is None else float(price),
            error=CurveErrors(ttft=errors.ttft, tpot=errors.tpot),
            points=points,
        )
