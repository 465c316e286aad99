"""Levers that a plan does not choose by itself, with what they would gain for its mean request, and what benchmarks
measured of them: speculation, which depends on the text, smaller keys and values and prompt compression, which change
completions, a KV store, which needs prefixes that return, and layer-wise keys and values, which only simulations have.

All are predicted as ``explain`` predicts them, from the plan's model, machine, formats and number of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twofold.bench.draw.form import duration
from twofold.planner.explain.lever import Assumptions, Effect, LeverRefusal
from twofold.planner.explain.measured import benchmark
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.serving_levers import SERVING_LEVERS
from twofold.planner.plan.plan import CapacityPlan
from twofold.planner.plan.traffic import Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.request import Case, Prediction, Predictor

CONDITIONS: Final = {
    "speculation": "It changes no completion; --text says which text it is and tries it.",
    "draft model": "It changes no completion; --text and --draft try it.",
    "KV q8": "It changes completions a little; --kv bf16,q8 tries it.",
    "KV k8v4": "It changes completions; --kv bf16,k8v4 tries it.",
    "KV store": "It changes no completion. This assumes that half of what is computed of each prompt was written "
    "before; --kv-store-bytes of twofold simulate counts what returns.",
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
    benchmark: str

    @property
    def words(self) -> str:
        """The offer in sentences."""
        if self.after is None:
            return f"{self.lever}: does not pay. {self.why}{self.benchmarked}"
        now, then = self.before, self.after
        changes = (("TTFT", now.ttft, then.ttft), ("TPOT", now.tpot, then.tpot), ("whole request", now.e2e, then.e2e))
        times = ", ".join(f"{name} {duration(one)} → {duration(other)}" for name, one, other in changes)
        return f"{self.lever}, {self.what}: {times}. {self.condition}{self.benchmarked}"

    @property
    def benchmarked(self) -> str:
        return f" Benchmarks measured {self.benchmark}." if self.benchmark else ""


def offers(plan: CapacityPlan, traffic: Traffic) -> Iterator[LeverOffer]:
    """What each of these levers would change for the mean request of the plan's traffic, with as many sequences as
    decode together on average; for layer-wise keys and values as many as at a busy time."""
    c, kinds = plan.configuration, traffic.kinds
    prompt = max(1, round(traffic.mean(kind.prompt for kind in kinds)))
    cached = min(prompt - 1, round(traffic.mean(kind.cached for kind in kinds)))
    output = max(1, round(traffic.mean(kind.output for kind in kinds)))
    predictor = Predictor(c.shape, c.machine, constants_for(c.machine, c.shape), c.setup)
    for lever in SERVING_LEVERS:
        if lever.name not in CONDITIONS or (c.speculation and lever.name in {"speculation", "draft model"}):
            continue
        together = plan.batch_limit if lever.name == "LayerKV" else max(1, round(plan.batch))
        case = Case(
            prompt=prompt, output=output, cached=cached, concurrency=together, chunk=None if c.split else c.chunk
        )
        scenario = UniformScenario(predictor, case)
        given = Assumptions()
        found = lever.apply(scenario, scenario.prediction, given)
        if isinstance(found, LeverRefusal) and found.status == "in use":
            continue
        after = found.foreseen if isinstance(found, Effect) else None
        what = found.what if isinstance(found, Effect) else ""
        known = benchmark(lever.name, given.text)
        yield LeverOffer(lever.name, what, found.why, CONDITIONS[lever.name], scenario.prediction, after, known)
