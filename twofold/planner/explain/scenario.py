"""The scenario of an explanation: equal requests to one model on one machine, and their predicted figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, get_args

from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import ValueFormat
from twofold.planner.count.memory import kv_bytes, weight_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.request import Case, Prediction, Predictor

Goal = Literal["e2e", "ttft", "tpot", "gap", "throughput"]
GOALS: tuple[Goal, ...] = get_args(Goal)
GOAL_WORDS: dict[Goal, str] = {
    "e2e": "end-to-end latency",
    "ttft": "time to the first token",
    "tpot": "time per output token",
    "gap": "longest inter-token gap",
    "throughput": "output tokens per second per device",
}


@dataclass(frozen=True, slots=True)
class ScenarioFigures:
    """Figures of a scenario, in seconds.

    gap         the longest between two tokens: a step with another request's prompt, or a chunk of it
    throughput  output tokens a second of all requests together, for each device
    memory      bytes of weights, keys and values on one device, with the batch halfway through its completions
    sequences   that fit in memory
    """

    ttft: float
    tpot: float
    e2e: float
    gap: float
    throughput: float
    memory: float
    sequences: int

    def gain(self, before: ScenarioFigures, goal: Goal) -> float:
        """Factor of improvement over ``before``: above 1 is better for every goal."""
        now, then = getattr(self, goal), getattr(before, goal)
        if now <= 0 or then <= 0:
            return 1.0
        return float(now / then if goal == "throughput" else then / now)


@dataclass(frozen=True)
class UniformScenario:
    """Equal requests (``case``) to a model on a machine (``predictor``)."""

    predictor: Predictor
    case: Case

    def having(self, *, shape: ModelSpec | None = None, how: Setting | None = None, case: Case | None = None) -> Self:
        """A copy with other values."""
        predictor = self.predictor
        if shape is not None or how is not None:
            predictor = replace(predictor, shape=shape or predictor.shape, how=how or predictor.how)
        return replace(self, predictor=predictor, case=case or self.case)

    @property
    def shape(self) -> ModelSpec:
        return self.predictor.shape

    @property
    def how(self) -> Setting:
        return self.predictor.how

    @property
    def further(self) -> int:
        """Tokens after the first."""
        return self.case.output - 1

    @cached_property
    def weights(self) -> ValueFormat:
        """The format of most values of the layers' matrices."""
        return main_format(self.shape)

    @property
    def weight_bytes(self) -> int:
        """Of one device."""
        return weight_bytes(self.shape, self.how)

    def kv_bytes(self, context: int) -> int:
        """Of one sequence on one device."""
        return kv_bytes(self.shape, context, self.how)

    @cached_property
    def sequences(self) -> int:
        """Sequences halfway through their completions that the memory holds."""
        return self.predictor.memory.sequences(self.case.halfway)

    @cached_property
    def prediction(self) -> Prediction:
        """Raises ParameterError if one request does not fit in memory."""
        return self.predictor.predict(self.case)

    def longest_gap(self, batch: int, *, prompts: bool = True) -> float:
        """Seconds of the worst step: a prompt's last chunk beside the others' tokens; any, without ``prompts``."""
        steps, by = self.predictor.steps, self.predictor.constants
        alone = SequenceRows(1, self.case.halfway - 1)
        if batch == 1 or not prompts:
            return steps.demand([(batch, alone)]).seconds(by)
        chunk = min(self.case.chunk or self.case.fresh, self.case.fresh)
        return steps.demand([(batch - 1, alone), (1, SequenceRows(chunk, self.case.prompt - chunk))]).seconds(by)

    def figures(self, prediction: Prediction | None = None, devices: float | None = None) -> ScenarioFigures:
        """Figures of this scenario by its own or a changed ``prediction``, on ``devices`` devices."""
        found = prediction or self.prediction
        return ScenarioFigures(
            ttft=found.ttft,
            tpot=found.tpot,
            e2e=found.e2e,
            gap=self.longest_gap(found.batch, prompts=found.interference > 0),
            throughput=found.tokens_per_s / (devices or found.devices),
            memory=self.weight_bytes + found.batch * self.kv_bytes(self.case.halfway),
            sequences=self.sequences,
        )


def retimed(before: Prediction, *, ttft: float, tpot: float, interference: float | None = None) -> Prediction:
    """A prediction with other times. ``ttft`` is without the queue, which scales with the whole completion."""
    served = ttft + (before.output - 1) * tpot
    queue = (before.concurrency - before.batch) / before.batch * served
    kept = before.interference if interference is None else interference
    return replace(before, ttft=ttft + queue, tpot=tpot, interference=kept, queue=queue)
