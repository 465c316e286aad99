"""Finds the cheapest plans for some traffic within limits, with reasons, and the frontier of TPOT against cost.

Each configuration is evaluated once. Either it exceeds a bound with any number of replicas, or its load curve gives the
minimum number of replicas that meets the limits. Estimates are monotone in that number, so bisection finds it. If there
is no plan, the error names the closest configuration, the bound that it exceeds, and configurations that meet the
limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, get_args

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.units import count
from twofold.planner.count.step import SequenceRows
from twofold.planner.explain.measured import benchmark
from twofold.planner.machines.known import known_machines
from twofold.planner.machines.machine import Machine
from twofold.planner.plan.evaluate import Candidate, candidates
from twofold.planner.plan.plan import (
    KV,
    TP,
    WEIGHTS,
    CapacityPlan,
    Choices,
    Configuration,
    Count,
    PlanRefusal,
    RefusalBound,
    Speculation,
    stored_as,
)
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.constants import Constants, Errors, constants_for, errors_for
from twofold.planner.predict.speculation import text_of
from twofold.planner.predict.steps import PART_WORDS

MIN_GAIN: Final = 0.01
"""Minimum relative reduction of TPOT by a more expensive point of the frontier."""
SHOWN: Final = 3
"""Maximum of configurations that an error suggests."""
MAX_DEVICES: Final = 1 << 20
"""Maximum of devices that an error suggests."""
BOUND_WORDS: Final[dict[RefusalBound, str]] = {
    "shape": "not divisible across the devices",
    "floor": "beyond the physical limit of the machine",
    "memory": "too large for the memory",
    "alone": "too slow even when idle",
    "devices": "short of devices",
}


def reasons(candidate: Candidate, plan: CapacityPlan) -> Iterator[str]:
    """Explains a plan in sentences, the most important first."""
    yield _replicas_reason(candidate, plan)
    yield _decode_reason(candidate, plan)
    if speculation := candidate.configuration.speculation:
        yield (
            f"A step with {count(speculation.drafts, 'draft token')} yields {speculation.tokens:.2f} tokens at an "
            f"acceptance rate of {speculation.acceptance:.2g}.{_benchmark(speculation)}"
        )
    yield _memory_reason(candidate, plan)
    yield from _quality_reasons(candidate)


def _replicas_reason(candidate: Candidate, plan: CapacityPlan) -> str:
    """Why this number of replicas: the limit that a plan with one fewer misses."""
    count = plan.count
    if not count.both:
        return f"{count.prefill} for prefill, {plan.prompt_share:.0%} utilized, and {count.decode} for decode."
    if count.both == 1:
        return f"One replica is enough; prefill takes {plan.prompt_share:.0%} of its time."
    fewer = candidate.plan(Count(both=count.both - 1))
    if fewer is None:
        return f"{count.both} replicas, because {count.both - 1} cannot sustain the load."
    for name, limit in candidate.slo.limits():
        if (value := fewer.estimates()[name].at) > limit:
            return (
                f"{count.both} replicas, because with {count.both - 1} {name.upper()} would be {value * 1e3:,.0f} ms."
            )
    return f"{count.both} replicas are enough."


def _decode_reason(candidate: Candidate, plan: CapacityPlan) -> str:
    batch = max(1, round(plan.batch))
    model = candidate.model
    parts = model.steps.demand([(batch, SequenceRows(1, candidate.traffic.context - 1))]).parts(model.constants)
    words = "fixed overhead" if parts.bound == "overhead" else PART_WORDS[parts.bound]
    share = getattr(parts, parts.bound) / parts.seconds
    return f"A decode step of {count(batch, 'sequence')} is dominated by {words} ({share:.0%})."


def _memory_reason(candidate: Candidate, plan: CapacityPlan) -> str:
    return (
        f"{plan.room.weights / 1e9:,.1f} GB of weights on each device leave {plan.room.kv / 1e9:,.1f} GB: room for "
        f"{plan.sequences:,} sequences of {candidate.traffic.context:,} tokens."
    )


def _quality_reasons(candidate: Candidate) -> Iterator[str]:
    c = candidate.configuration
    if not c.stored:
        yield f"{c.weights} weights may reduce quality: compare output quality with the unquantized model."
    if c.setup.kv.bits < 16:
        known = benchmark(f"KV {c.setup.kv.name}", None)
        words = f" Benchmarks measured {known}." if known else ""
        yield f"{c.setup.kv.bits}-bit KV may reduce quality in long contexts.{words}"


def _benchmark(speculation: Speculation) -> str:
    draft_model = speculation.draft is not None
    text = text_of(speculation.acceptance, draft_model=draft_model)
    known = benchmark("draft model" if draft_model else "speculation", text)
    return f" Benchmarks measured {known}." if known else ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about machines that their data sheets lack.

    constants  returns the constants of the step-time model
    prices     dollars of a device's hour that replace the table's, by machine name
    """

    constants: Callable[[Machine, ModelSpec], Constants] = constants_for
    prices: Mapping[str, float] = field(default_factory=dict)

    def price(self, machine: Machine) -> float | None:
        """Dollars of a device's hour; None if unknown."""
        return self.prices.get(machine.name, None if machine.price is None else float(machine.price))

    def of(self, configuration: Configuration) -> tuple[Constants, Errors, float | None]:
        """Constants, prediction errors and price for a configuration's model and machine."""
        constants = self.constants(configuration.machine, configuration.shape)
        return constants, measured_errors(configuration, constants), self.price(configuration.machine)


def measured_errors(configuration: Configuration, by: Constants | None = None) -> Errors:
    """Prediction errors for a configuration. The error of TTFT is unknown: it was measured in closed loops, but plans
    have random arrivals."""
    shape, machine = configuration.shape, configuration.machine
    return replace(errors_for(shape, machine, by or constants_for(machine, shape)), ttft=None)


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """A configuration at some load. ``cost``: dollars an hour, or devices without a price."""

    name: str
    count: Count
    tpot: float
    cost: float
    met: bool


@dataclass(frozen=True, slots=True)
class PlanStudy:
    """The result of a search.

    plans      those that meet the limits, cheapest first; of plans that differ only in chunks or drafts the cheapest
    refusals   configurations that cannot meet the limits
    frontier   points such that no other is both faster and cheaper, by ascending cost; they may miss the limits
    tried      number of configurations
    """

    plans: tuple[CapacityPlan, ...]
    refusals: tuple[PlanRefusal, ...]
    frontier: tuple[SearchPoint, ...]
    tried: int


def search(choices: Choices, traffic: Traffic, slo: PlanSlo, facts: Facts) -> PlanStudy:
    """All plans that meet the limits. Raises ParameterError if costs cannot be compared without a price."""
    _check_prices(choices, facts)
    plans: list[CapacityPlan] = []
    refusals: list[PlanRefusal] = []
    points: list[SearchPoint] = []
    found = candidates(choices.configurations(), traffic, slo, facts.of)
    tried = 0
    for candidate in found:
        tried += 1
        if isinstance(candidate, PlanRefusal):
            refusals.append(candidate)
            continue
        outcome = candidate.refusal() or smallest_plan(candidate, choices.devices)
        if isinstance(outcome, PlanRefusal):
            refusals.append(outcome)
        else:
            plans.append(replace(outcome, reasons=tuple(reasons(candidate, outcome))))
        if not isinstance(outcome, PlanRefusal) or outcome.bound not in ("memory", "shape"):
            points += _points(candidate, choices.devices)
    return PlanStudy(tuple(best(plans)), tuple(refusals), tuple(frontier(points)), tried)


def best(plans: Iterable[CapacityPlan]) -> list[CapacityPlan]:
    """Plans by cost, the cheapest first; of plans that differ only in chunks or drafts only the first."""
    kept: dict[tuple[object, ...], CapacityPlan] = {}
    for plan in by_cost(plans):
        c = plan.configuration
        kept.setdefault((c.shape.name, c.machine.name, c.setup, c.weights, c.split), plan)
    return list(kept.values())


def frontier(points: Iterable[SearchPoint]) -> list[SearchPoint]:
    """The Pareto front of TPOT and cost; each point reduces TPOT by at least a hundredth."""
    kept: list[SearchPoint] = []
    for point in sorted(points, key=lambda each: (each.cost, each.tpot)):
        if not kept or point.tpot < (1 - MIN_GAIN) * kept[-1].tpot:
            kept.append(point)
    return kept


def by_cost(plans: Iterable[CapacityPlan]) -> list[CapacityPlan]:
    """Plans by cost, then by number of devices, risk for quality, and speed."""
    return sorted(plans, key=_rank)


def _rank(plan: CapacityPlan) -> tuple[float, int, int, float, float]:
    c = plan.configuration
    risks = (not c.stored) + (c.setup.kv.bits < 16)
    return (plan.devices if plan.cost is None else plan.cost), plan.devices, risks, plan.tpot.at, plan.ttft.at


def _check_prices(choices: Choices, facts: Facts) -> None:
    """Raises ParameterError if one of several machines has no price; plans for one machine are compared by devices."""
    missing = [machine.name for machine in choices.machines if facts.price(machine) is None]
    if missing and len(choices.machines) > 1:
        raise ParameterError(
            f"The price of {', '.join(missing)} is not known.",
            param="price",
            hint=f"Give dollars per device and hour: --price {missing[0]}=2.50",
        )


def smallest_plan(candidate: Candidate, devices: int) -> CapacityPlan | PlanRefusal:
    """The plan with the fewest replicas that meets the limits, or a refusal if it needs more than ``devices``."""
    limit = devices // candidate.configuration.tp

    def meets(count: Count) -> bool:
        plan = candidate.plan(count)
        return plan is not None and candidate.meets(plan)

    if candidate.configuration.split:
        decode = _smallest(lambda n: meets(Count(prefill=limit, decode=n)), limit)
        prefill = decode and _smallest(lambda n: meets(Count(prefill=n, decode=decode)), limit - decode)
        count = Count(prefill=prefill, decode=decode) if decode and prefill else None
    else:
        both = _smallest(lambda n: meets(Count(both=n)), limit)
        count = Count(both=both) if both else None
    plan = candidate.plan(count) if count else None
    return plan or _too_few(candidate, devices)


def _smallest(enough: Callable[[int], bool], limit: int) -> int | None:
    """The smallest number up to ``limit`` that is enough; all larger ones are too. None if ``limit`` is not enough."""
    high = 1
    while high < limit and not enough(high):
        high *= 2
    high = min(high, limit)
    if limit < 1 or not enough(high):
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _too_few(candidate: Candidate, devices: int) -> PlanRefusal:
    """The refusal of a candidate that ``devices`` devices are too few for."""
    configuration = candidate.configuration
    replicas = devices // configuration.tp
    if not replicas:
        return PlanRefusal(
            configuration, "devices", f"one replica has {configuration.tp} devices, more than {devices:,}"
        )
    half = max(1, replicas // 2)
    count = Count(prefill=half, decode=half) if configuration.split else Count(both=replicas)
    plan = candidate.plan(count)
    if plan is None:
        return PlanRefusal(configuration, "devices", f"{devices:,} devices cannot sustain the load")
    for name, limit in candidate.slo.limits():
        if (value := plan.estimates()[name].at) > limit:
            why = f"{name.upper()} is {value * 1e3:,.1f} ms at P{100 * candidate.slo.attainment:.4g}"
            return PlanRefusal(configuration, "devices", f"{why} with {devices:,} devices", name, value, limit)
    return PlanRefusal(configuration, "devices", f"{devices:,} devices are not enough for both phases")


def _points(candidate: Candidate, devices: int) -> Iterable[SearchPoint]:
    """The configuration at each load of its curve for which ``devices`` devices are enough."""
    rate, tp = candidate.traffic.rate, candidate.configuration.tp
    counts = {math.ceil(rate / state.rate) for state in candidate.curve.states[1:]}
    prefill = _prefill(candidate, devices // tp) if candidate.configuration.split else 0
    for number in sorted(counts):
        count = Count(prefill=prefill, decode=number) if prefill else Count(both=number)
        if count.replicas * tp > devices or (candidate.configuration.split and not prefill):
            continue
        plan = candidate.plan(count)
        if plan is not None and math.isfinite(plan.ttft.at):
            cost = float(plan.devices) if plan.cost is None else plan.cost
            yield SearchPoint(candidate.configuration.name, count, plan.tpot.mean, cost, candidate.meets(plan))


def _prefill(candidate: Candidate, limit: int) -> int:
    """The fewest of up to ``limit`` prefill replicas that meet the limit of TTFT, or else sustain the load; or 0."""
    ttft = candidate.slo.ttft

    def enough(number: int, ttft: float | None) -> bool:
        plan = candidate.plan(Count(prefill=number, decode=limit))
        return plan is not None and (ttft is None or plan.ttft.at <= ttft)

    return _smallest(lambda n: enough(n, ttft), limit) or _smallest(lambda n: enough(n, None), limit) or 0


def nothing_found(study: PlanStudy, choices: Choices, traffic: Traffic, slo: PlanSlo, facts: Facts) -> ParameterError:
    """The error for a study without plans: the closest configuration, and configurations that meet the limits."""
    nearest = closest_refusal(study.refusals)
    counts = {bound: sum(each.bound == bound for each in study.refusals) for bound in BOUND_WORDS}
    reasons = ", ".join(f"{count} {BOUND_WORDS[bound]}" for bound, count in counts.items() if count)
    message = (
        f"None of {study.tried} configurations meets {slo} ({reasons}). The closest is {nearest.configuration.name}: "
        f"{nearest.why}."
    )
    if nearest.bound == "devices":
        hint = _devices_hint(nearest.configuration, traffic, slo, facts)
    elif others := list(islice(alternatives(choices, traffic, slo, facts), SHOWN)):
        hint = f"With enough replicas, these can meet it: {'; '.join(_short(each, choices) for each in others)}."
    else:
        hint = "Nothing in the table of hardware meets it: relax the limits, or use a smaller model."
    return ParameterError(message, param="slo", hint=hint)


def _devices_hint(configuration: Configuration, traffic: Traffic, slo: PlanSlo, facts: Facts) -> str:
    """The number of devices with which a configuration meets the limits."""
    plan = smallest_plan(Candidate(configuration, traffic, slo, *facts.of(configuration)), MAX_DEVICES)
    if isinstance(plan, PlanRefusal):
        return f"Not even {MAX_DEVICES:,} devices are enough: relax the limits, or allow other configurations."
    return f"It would take {plan.devices:,} devices: raise --max-devices, or relax the limits."


def closest_refusal(refusals: Sequence[PlanRefusal]) -> PlanRefusal:
    """The refusal with the softest bound, and of several the one closest to its limit."""
    order = get_args(RefusalBound)
    return min(refusals, key=lambda each: (-order.index(each.bound), each.value / each.limit if each.limit else 0.0))


def alternatives(choices: Choices, traffic: Traffic, slo: PlanSlo, facts: Facts) -> Iterable[Configuration]:
    """Configurations that exceed no bound at low load, one for each model, machine and weight format: those most like
    the choices first, then the cheapest."""
    gpus = (machine for machine in known_machines().values() if machine.kind == "gpu")
    machines = {machine.name: machine for machine in (*choices.machines, *gpus)}
    wider = replace(
        choices,
        machines=tuple(machines.values()),
        tp=tuple(sorted({*choices.tp, *TP})),
        weights=tuple(dict.fromkeys((*choices.weights, *WEIGHTS))),
        kv=tuple(dict.fromkeys((*choices.kv, *KV))),
        chunks=choices.chunks[-1:],
        split=False,
    )
    found = candidates(wider.configurations(), traffic, slo, facts.of)
    good = [each.configuration for each in found if not isinstance(each, PlanRefusal) and each.refusal() is None]

    def rank(c: Configuration) -> tuple[int, float, int]:
        price = facts.price(c.machine)
        return _differences(c, choices), math.inf if price is None else price * c.tp, c.tp

    first: dict[tuple[str, str, str], Configuration] = {}
    for c in sorted(good, key=rank):
        first.setdefault((c.shape.name, c.machine.name, c.weights), c)
    return first.values()


def _short(configuration: Configuration, asked: Choices) -> str:
    c = configuration
    model = f"{c.shape.name} with " if len(asked.models) > 1 else ""
    kv = "" if c.setup.kv in asked.kv else f", {c.setup.kv.name} keys and values"
    return f"{model}{c.weights} weights on {c.tp}×{c.machine.name}{kv}"


def _differences(configuration: Configuration, asked: Choices) -> int:
    """In how many respects a configuration differs from the choices."""
    names = {main_format(shape).name for model in asked.models for shape in stored_as(model, asked.weights)}
    return sum(
        (
            configuration.machine not in asked.machines,
            configuration.tp not in asked.tp,
            configuration.weights not in names,
            configuration.setup.kv not in asked.kv,
        )
    )
