"""The scenario of an explanation: equal requests to one model on one machine; its figures, and the phases of a request.

    queue     waits for a slot and for other prompts, before the prompt's own steps
    prefill   the prompt's own steps, and the seconds that a request spends outside of steps
    decode    the steps of the tokens after the first
    stalls    delays of these steps: other prompts in them, preemption, a slow reader

Phases add up to the time of the whole completion. Each has its measured and its predicted seconds, and its floor: all
bytes at the peak bandwidth or all products at the peak, whichever takes longer. The largest of the predicted ``parts``
is the bound. Queue and stalls have no floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, Self, get_args

from twofold.api.body import NonNegativeInt, ReplyObject
from twofold.bench.draw.form import duration
from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import ValueFormat
from twofold.planner.count.memory import kv_bytes, weight_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.request import Case, Prediction, Predictor
from twofold.planner.predict.steps import StepParts

Goal = Literal["e2e", "ttft", "tpot", "gap", "throughput"]
GOALS: tuple[Goal, ...] = get_args(Goal)
GOAL_WORDS: dict[Goal, str] = {
    "e2e": "end-to-end latency",
    "ttft": "time to the first token",
    "tpot": "time per output token",
    "gap": "longest inter-token gap",
    "throughput": "output tokens per second per device",
}
PhaseName = Literal["queue", "prefill", "decode", "stalls"]
Limit = Literal["memory", "arithmetic", "link", "overhead"]
ROUNDING: Final = 1e-9
NAMES: tuple[PhaseName, ...] = ("queue", "prefill", "decode", "stalls")


class Figures(ReplyObject):
    """Figures of a scenario, in seconds.

    tpot, gap   None for a completion of one token
    gap         longest gap between two tokens: a step with another request's prompt, or with a chunk of it
    throughput  output tokens a second and device, of all requests together
    memory      bytes of weights, keys and values on one device, with the batch halfway through its completions
    sequences   number that fits in memory
    """

    ttft: float
    tpot: float | None
    e2e: float
    gap: float | None
    throughput: float
    memory: float
    sequences: NonNegativeInt

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The goals that it has figures of."""
        return tuple(goal for goal in GOALS if getattr(self, goal) is not None)

    def gain(self, before: Figures, goal: Goal) -> float:
        """Factor of improvement over ``before``: above 1 is better for every goal."""
        now, then = getattr(self, goal), getattr(before, goal)
        if not now or not then:
            return 1.0
        return float(now / then if goal == "throughput" else then / now)


@dataclass(frozen=True)
class UniformScenario:
    """Equal requests (``case``) to a model on a machine (``predictor``)."""

    predictor: Predictor
    case: Case

    def having(self, *, shape: ModelSpec | None = None, setup: Setting | None = None, case: Case | None = None) -> Self:
        """A copy with other values."""
        predictor = self.predictor
        if shape is not None or setup is not None:
            predictor = replace(predictor, shape=shape or predictor.shape, setup=setup or predictor.setup)
        return replace(self, predictor=predictor, case=case or self.case)

    @property
    def shape(self) -> ModelSpec:
        return self.predictor.shape

    @property
    def setup(self) -> Setting:
        return self.predictor.setup

    @property
    def further(self) -> int:
        """Tokens after the first."""
        return self.case.output - 1

    @cached_property
    def weights(self) -> ValueFormat:
        """The main format of the layers' matrices."""
        return main_format(self.shape)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on one device."""
        return weight_bytes(self.shape, self.setup)

    def kv_bytes(self, context: int) -> int:
        """Bytes of keys and values of one sequence on one device."""
        return kv_bytes(self.shape, context, self.setup)

    @cached_property
    def sequences(self) -> int:
        """Sequences halfway through their completions that the memory holds."""
        return self.predictor.memory.sequences(self.case.halfway)

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction for the case. Raises ParameterError if one request does not fit in memory."""
        return self.predictor.predict(self.case)

    def longest_gap(self, batch: int, *, prompts: bool = True) -> float:
        """Seconds of the longest step: the other sequences' tokens with a prompt's last chunk, if ``prompts``."""
        steps, by = self.predictor.steps, self.predictor.constants
        alone = SequenceRows(1, self.case.halfway - 1)
        if batch == 1 or not prompts:
            return steps.demand([(batch, alone)]).seconds(by)
        chunk = min(self.case.chunk or self.case.fresh, self.case.fresh)
        return steps.demand([(batch - 1, alone), (1, SequenceRows(chunk, self.case.prompt - chunk))]).seconds(by)

    def figures(self, prediction: Prediction | None = None, devices: float | None = None) -> Figures:
        """Figures of this scenario with its own or another ``prediction`` and number of ``devices``."""
        found = prediction or self.prediction
        return Figures(
            ttft=found.ttft,
            tpot=found.tpot if self.further else None,
            e2e=found.e2e,
            gap=self.longest_gap(found.batch, prompts=found.interference > 0) if self.further else None,
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


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a request, in seconds: None if not measured, not predicted, or without a floor.

    bound           the largest part of its prediction, or the limit that sets its floor
    flops, nbytes   measured work on one device
    why             its cause in words
    """

    name: PhaseName
    actual: float | None = None
    predicted: float | None = None
    floor: float | None = None
    bound: Limit | None = None
    parts: StepParts | None = None
    why: str = ""
    flops: float | None = None
    nbytes: float | None = None

    @property
    def seconds(self) -> float:
        """Measured, or else predicted."""
        return self.predicted or 0.0 if self.actual is None else self.actual

    @property
    def share(self) -> float | None:
        """The floor as a share of the seconds: 1 is the physical limit."""
        return self.floor / self.seconds if self.floor and self.seconds > 0 else None

    @property
    def error(self) -> float | None:
        """Error of the prediction, as a share of the measured seconds; above 0 it was too long."""
        return self.predicted / self.actual - 1 if self.predicted is not None and self.actual else None


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The four phases, in order."""

    phases: tuple[Phase, ...]

    def named(self, name: PhaseName) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def predicted(self) -> float | None:
        """All phases together; None if one has no prediction."""
        known = [phase.predicted for phase in self.phases if phase.predicted is not None]
        return sum(known) if len(known) == len(self.phases) else None

    @property
    def floor(self) -> float:
        """Minimum seconds on this machine."""
        return sum(phase.floor or 0.0 for phase in self.phases)


class ObservedDrafts(NamedTuple):
    """Draft tokens that were computed, those that became output, and the seconds that they saved (below 0: cost)."""

    drafted: int
    accepted: int
    saved_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """A request that ended, from a record, ``twofold run --json`` or a bench.

    batch              mean number of sequences in its decode steps
    loaded, load_s     of the cached tokens those from a store on disk, and the seconds of loading them
    drafts             None without any
    notes              describe figures that were inferred
    """

    title: str
    model: str | None
    prompt: int
    cached: int
    output: int
    batch: float = 1.0
    phases: Mapping[PhaseName, Phase] = field(default_factory=dict)
    loaded: int = 0
    load_s: float = 0.0
    drafts: ObservedDrafts | None = None
    notes: tuple[str, ...] = ()


def waterfall(
    scenario: UniformScenario | None, observed: Observed | None = None, found: Prediction | None = None
) -> Waterfall:
    """The phases of a scenario as predicted (by ``found``, if it is not the scenario's own prediction), of a request as
    measured, or both."""
    foreseen = {} if scenario is None else _foreseen(scenario, found or scenario.prediction)
    measured = {} if observed is None else observed.phases
    return Waterfall(tuple(_joined(foreseen.get(n, Phase(n)), measured.get(n, Phase(n))) for n in NAMES))


def limit_of(parts: StepParts) -> Limit:
    """The largest part; weights and KV cache are both read from memory."""
    sums: dict[Limit, float] = {
        "memory": parts.weights + parts.kv,
        "arithmetic": parts.arithmetic,
        "link": parts.links,
        "overhead": parts.overhead,
    }
    return max(sums, key=lambda name: sums[name])


def prefill_parts(scenario: UniformScenario, prediction: Prediction) -> StepParts:
    """The parts of prefill, with the seconds outside of steps."""
    first = float(scenario.predictor.constants.t_first)
    return prediction.prefill._replace(overhead=prediction.prefill.overhead + first)


def queue_of(scenario: UniformScenario, found: Prediction) -> float:
    """Seconds to the first token without those of its own prompt; 0 if they are only a rounding error."""
    seconds = found.ttft - prefill_parts(scenario, found).seconds
    return seconds if seconds > ROUNDING * found.ttft else 0.0


def _foreseen(scenario: UniformScenario, found: Prediction) -> dict[PhaseName, Phase]:
    further = scenario.further
    first, rest = prefill_parts(scenario, found), found.decode.times(further)
    decode = rest.seconds
    if found is not scenario.prediction and decode:  # levers changed its time, of all parts alike
        decode = further * (found.tpot - found.interference)
        rest = rest.times(decode / rest.seconds)
    queue = queue_of(scenario, found)
    others = found.batch - 1
    return {
        "queue": Phase("queue", predicted=queue, why=_queue_words(scenario, found)),
        "prefill": Phase("prefill", None, first.seconds, found.ttft_floor, limit_of(first), first),
        "decode": Phase("decode", None, decode, further * found.tpot_floor, limit_of(rest), rest),
        "stalls": Phase(
            "stalls",
            predicted=further * found.interference,
            why=f"prefill of {others} other request{'s' * (others != 1)} in the same steps" if others else "",
        ),
    }


def _queue_words(scenario: UniformScenario, found: Prediction) -> str:
    if found.load > 0:
        return f"{scenario.case.loaded:,} tokens loaded from disk {duration(found.load)}"
    if found.queue > 0:
        return f"{found.concurrency} open requests, of which {found.batch} fit in memory"
    if found.batch == 1:
        return ""
    ahead = scenario.predictor.constants.prompts_ahead(found.batch)
    return f"{ahead:.2g} other prompts first" if ahead else "until the running step ends"


def _joined(foreseen: Phase, observed: Phase) -> Phase:
    """A phase as it was measured, with its prediction."""
    return replace(
        observed,
        predicted=observed.predicted if foreseen.predicted is None else foreseen.predicted,
        floor=foreseen.floor if observed.floor is None else observed.floor,
        bound=foreseen.bound if observed.floor is None else observed.bound,
        parts=foreseen.parts,
        why=observed.why or foreseen.why,
    )
