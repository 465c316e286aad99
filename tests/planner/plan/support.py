"""Traffic and candidates that several tests use."""

from __future__ import annotations

from twofold.core.values import BF16
from twofold.planner.count.setting import Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.plan.evaluate import Candidate, StepModel
from twofold.planner.plan.plan import Choices, Configuration, Speculation
from twofold.planner.plan.search import Facts
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.shapes.known import find_shape

FACTS = Facts()


def steady(rate: float = 5.0, prompt: int = 1000, output: int = 200, cached: int = 0) -> Traffic:
    """Equal requests."""
    return Traffic.of_requests(rate, [(prompt, cached, output)])


def configuration(
    model: str = "llama-3-8b",
    machine: str = "h100",
    *,
    tp: int = 1,
    chunk: int = 2048,
    split: bool = False,
    speculation: Speculation | None = None,
) -> Configuration:
    return Configuration(
        find_shape(model), find_machine(machine), "bf16", Setting(tp=tp, kv=BF16), chunk, split, speculation
    )


def model_of(configuration: Configuration, traffic: Traffic) -> StepModel:
    return StepModel.of(configuration, traffic, constants_for(configuration.machine, configuration.shape))


def candidate(configuration: Configuration, traffic: Traffic, slo: PlanSlo) -> Candidate:
    return Candidate(configuration, traffic, slo, *FACTS.of(configuration))


def choices(model: str = "llama-3-8b", *machines: str, **others: object) -> Choices:
    found = tuple(map(find_machine, machines or ("h100",)))
    return Choices(models=(find_shape(model),), machines=found, **others)  # type: ignore[arg-type]
