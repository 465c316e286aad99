"""The error of a search without plans: which bound forbids the closest configuration, and what would do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, get_args

from twofold.core.errors import ParameterError
from twofold.core.tensors import main_format
from twofold.planner.machines.known import known_machines
from twofold.planner.plan.choices import KV, TP, WEIGHTS, Choices, Configuration, stored_as
from twofold.planner.plan.evaluate import Candidate, candidates
from twofold.planner.plan.plan import Bound, PlanRefusal
from twofold.planner.plan.search import Facts, PlanStudy, least
from twofold.planner.plan.traffic import Slo, Traffic

SHOWN: Final = 3
MAX_DEVICES: Final = 1 << 20
"""Most devices that the search for enough devices tries."""
WORDS: Final[dict[Bound, str]] = {
    "shape": "cannot be cut up so",
    "floor": "below what the machine can do at all",
    "memory": "without room",
    "alone": "too slow even when idle",
    "devices": "short of devices",
}


def nothing_found(study: PlanStudy, choices: Choices, traffic: Traffic, slo: Slo, facts: Facts) -> ParameterError:
    """The error for a study without plans: the closest configuration, and what would do."""
    nearest = closest(study.refusals)
    counts = {bound: sum(each.bound == bound for each in study.refusals) for bound in WORDS}
    reasons = ", ".join(f"{count} {WORDS[bound]}" for bound, count in counts.items() if count)
    message = (
        f"None of {study.tried} configurations keeps {slo} ({reasons}). The nearest, {nearest.configuration.name}: "
        f"{nearest.why}."
    )
    if nearest.bound == "devices":
        hint = _enough(nearest.configuration, traffic, slo, facts)
    elif others := list(islice(would_do(choices, traffic, slo, facts), SHOWN)):
        hint = f"Would do, if there are enough of them: {'; '.join(_short(each, choices) for each in others)}."
    else:
        hint = "Nothing in the table of hardware would do: allow more time, or use a smaller model."
    return ParameterError(message, param="slo", hint=hint)


def _enough(configuration: Configuration, traffic: Traffic, slo: Slo, facts: Facts) -> str:
    """The number of devices that would do."""
    plan = least(Candidate(configuration, traffic, slo, *facts.of(configuration)), MAX_DEVICES)
    if isinstance(plan, PlanRefusal):
        return f"Not even {MAX_DEVICES:,} devices would do: allow more time, or other configurations."
    return f"It would take {plan.devices:,} devices: raise --max-devices, or allow more time."


def closest(refusals: Sequence[PlanRefusal]) -> PlanRefusal:
    """The refusal with the softest bound, and of these the one nearest to its limit."""
    order = get_args(Bound)
    return min(refusals, key=lambda each: (-order.index(each.bound), each.value / each.limit if each.limit else 0.0))


def would_do(choices: Choices, traffic: Traffic, slo: Slo, facts: Facts) -> Iterable[Configuration]:
    """Configurations that exceed no bound at low load: first those most like the choices, then the cheapest."""
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
    return _unlike(sorted(good, key=lambda c: (_changes(c, choices), _price(c, facts), c.tp)))


def _short(configuration: Configuration, asked: Choices) -> str:
    c = configuration
    model = f"{c.shape.name} with " if len(asked.models) > 1 else ""
    kv = "" if c.how.kv in asked.kv else f", {c.how.kv.name} keys and values"
    return f"{model}{c.weights} weights on {c.tp}×{c.machine.name}{kv}"


def _changes(configuration: Configuration, asked: Choices) -> int:
    """In how many ways a configuration differs from the choices."""
    names = {main_format(shape).name for model in asked.models for shape in stored_as(model, asked.weights)}
    return sum(
        (
            configuration.machine not in asked.machines,
            configuration.tp not in asked.tp,
            configuration.weights not in names,
            configuration.how.kv not in asked.kv,
        )
    )


def _price(configuration: Configuration, facts: Facts) -> float:
    price = facts.price(configuration.machine)
    return float("inf") if price is None else price * configuration.tp


def _unlike(configurations: Iterable[Configuration]) -> Iterable[Configuration]:
    """The first configuration of each model, machine and weight format."""
    seen: set[tuple[str, str, str]] = set()
    for each in configurations:
        key = (each.shape.name, each.machine.name, each.weights)
        if key not in seen:
            seen.add(key)
            yield each
