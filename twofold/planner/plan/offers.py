"""Levers that a plan does not choose by itself, with what they would gain for its mean request: prompt compression,
which changes what models answer, and layer-wise keys and values, which the engine has only in simulations.

Both are predicted as ``explain`` predicts them, from the plan's model, machine, formats and number of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.bench.draw.form import duration
from twofold.planner.explain.lever import Assumptions, Effect
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.serving_levers import SERVING_LEVERS
from twofold.planner.plan.plan import CapacityPlan
from twofold.planner.plan.traffic import Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.request import Case, Prediction, Predictor

CONDITIONS: Final = {
    "prompt compression": "It changes outputs, so it needs your consent: the field compress of a request, or --keep of "
    "twofold simulate.",
    "LayerKV": "Only the simulator has it: twofold simulate --layer-kv.",
}


@dataclass(frozen=True, slots=True)
class LeverOffer:
    """A lever that a plan leaves out. ``before`` and ``after``: predictions for the mean request; ``after`` is None if
    the lever would not pay, for the reason ``why``."""

    lever: str
    what: str
    why: str
    condition: str
    before: Prediction
    after: Prediction | None

    @property
    def words(self) -> str:
        """The offer in sentences."""
        if self.after is None:
            return f"{self.lever}: does not pay. {self.why}"
        now, then = self.before, self.after
        changes = (("TTFT", now.ttft, then.ttft), ("TPOT", now.tpot, then.tpot), ("whole request", now.e2e, then.e2e))
        times = ", ".join(f"{name} {duration(one)} → {duration(other)}" for name, one, other in changes)
        return f"{self.lever}, {self.what}: {times}. {self.condition}"


def offers(plan: CapacityPlan, traffic: Traffic) -> Iterator[LeverOffer]:
    """What each of these levers would change for the mean request of the plan's traffic, with as many sequences as
    decode together on average; for layer-wise keys and values as many as at a busy time."""
    c, kinds = plan.configuration, traffic.kinds
    prompt = max(1, round(traffic.mean(kind.prompt for kind in kinds)))
    cached = min(prompt - 1, round(traffic.mean(kind.cached for kind in kinds)))
    output = max(1, round(traffic.mean(kind.output for kind in kinds)))
    predictor = Predictor(c.shape, c.machine, constants_for(c.machine, c.shape), c.how)
    for lever in SERVING_LEVERS:
        if lever.name not in CONDITIONS:
            continue
        together = plan.batch_limit if lever.name == "LayerKV" else max(1, round(plan.batch))
        case = Case(
            prompt=prompt, output=output, cached=cached, concurrency=together, chunk=None if c.split else c.chunk
        )
        scenario = UniformScenario(predictor, case)
        found = lever.apply(scenario, scenario.prediction, Assumptions())
        after = found.foreseen if isinstance(found, Effect) else None
        what = found.what if isinstance(found, Effect) else ""
        yield LeverOffer(lever.name, what, found.why, CONDITIONS[lever.name], scenario.prediction, after)
