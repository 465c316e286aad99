"""Where the time of a request goes, phase after phase: queue, prefill, decode, stalls.

    queue     until its prompt is computed: for a place among those that run, behind other prompts
    prefill   its prompt's own steps, and what a request takes outside of steps
    decode    the steps of its further tokens
    stalls    what made these steps longer or kept it out of them: others' prompts, preemption, a slow reader

Phases add up to the time of the whole answer. Each has beside its seconds those that the cost model predicts, and the
least that the machine could have taken, where they are known: all bytes at the peak bandwidth or all products at the
peak, whichever takes longer. ``parts`` say what the predicted seconds go to, and the largest part is the bound. The
floor of a queue and of stalls is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from twofold.planner.explain.observed import Observed, Spent
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.predict.request import Prediction
from twofold.planner.predict.steps import StepParts

PhaseName = Literal["queue", "prefill", "decode", "stalls"]
Limit = Literal["memory", "arithmetic", "link", "overhead"]
ROUNDING: Final = 1e-9
NAMES: tuple[PhaseName, ...] = ("queue", "prefill", "decode", "stalls")


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a request. Seconds are None where they were not measured, not predicted, or have no floor.

    ``bound`` is what its predicted seconds go to most, or what its floor is set by. ``why`` says what is behind it.
    """

    name: PhaseName
    actual: float | None = None
    predicted: float | None = None
    floor: float | None = None
    bound: Limit | None = None
    parts: StepParts | None = None
    why: str = ""

    @property
    def seconds(self) -> float:
        """Measured where it was, else predicted."""
        return self.predicted or 0.0 if self.actual is None else self.actual

    @property
    def share(self) -> float | None:
        """How near it came to its floor: 1 is the physical limit."""
        return self.floor / self.seconds if self.floor and self.seconds > 0 else None

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was measured; above 0 it was too long."""
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
        """All of it, or None where a phase with seconds has no prediction."""
        known = [phase.predicted for phase in self.phases if phase.predicted is not None]
        return sum(known) if len(known) == len(self.phases) else None

    @property
    def floor(self) -> float:
        """Seconds that nothing on this machine can go below."""
        return sum(phase.floor or 0.0 for phase in self.phases)


def waterfall(scenario: UniformScenario | None, seen: Observed | None = None) -> Waterfall:
    """Predicted, measured, or both beside each other."""
    foreseen = {} if scenario is None else _foreseen(scenario, scenario.prediction)
    return Waterfall(tuple(_joined(name, foreseen.get(name), seen) for name in NAMES))


def limit_of(parts: StepParts) -> Limit:
    """What most of the seconds go to; weights and KV cache are both read from memory."""
    sums: dict[Limit, float] = {
        "memory": parts.weights + parts.kv,
        "arithmetic": parts.arithmetic,
        "link": parts.links,
        "overhead": parts.overhead,
    }
    return max(sums, key=lambda name: sums[name])


def prefill_parts(scenario: UniformScenario, prediction: Prediction) -> StepParts:
    """With what a request takes outside of its steps."""
    first = float(scenario.predictor.constants.t_first)
    return prediction.prefill._replace(overhead=prediction.prefill.overhead + first)


def queue_of(scenario: UniformScenario, found: Prediction) -> float:
    """Seconds to the first token beside those of its own prompt; rounding leaves none where nobody waits."""
    seconds = found.ttft - prefill_parts(scenario, found).seconds
    return seconds if seconds > ROUNDING * found.ttft else 0.0


def _foreseen(scenario: UniformScenario, found: Prediction) -> dict[PhaseName, Phase]:
    further = scenario.further
    first, rest = prefill_parts(scenario, found), found.decode.times(further)
    queue = queue_of(scenario, found)
    others = found.batch - 1
    return {
        "queue": Phase("queue", predicted=queue, why=_queue_words(scenario, found)),
        "prefill": Phase("prefill", None, first.seconds, found.ttft_floor, limit_of(first), first),
        "decode": Phase("decode", None, rest.seconds, further * found.tpot_floor, limit_of(rest), rest),
        "stalls": Phase(
            "stalls",
            predicted=further * found.interference,
            why=f"prefill of {others} other request{'s' * (others != 1)} in the same steps" if others else "",
        ),
    }


def _queue_words(scenario: UniformScenario, found: Prediction) -> str:
    if found.queue > 0:
        return f"{found.concurrency} open requests, of which {found.batch} fit in memory"
    if found.batch == 1:
        return ""
    ahead = scenario.predictor.constants.prompts_ahead(found.batch)
    return f"{ahead:.2g} other prompts first" if ahead else "end of the running step"


def _joined(name: PhaseName, foreseen: Phase | None, seen: Observed | None) -> Phase:
    """A phase as it was, with what was predicted for it."""
    spent = Spent() if seen is None else seen.phases.get(name, Spent())
    guess = foreseen or Phase(name)
    known = spent.floor is not None
    return Phase(
        name,
        actual=spent.seconds,
        predicted=guess.predicted if guess.predicted is not None else spent.predicted,
        floor=spent.floor if known else guess.floor,
        bound=spent.bound if known else guess.bound,
        parts=guess.parts,
        why=spent.why or guess.why,
    )
