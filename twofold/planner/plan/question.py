"""The question of ``twofold plan`` and of POST /v1/twofold/plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.core.kv_layout import find_kv_format
from twofold.core.model import ModelSpec
from twofold.core.values import ValueFormat, find_format
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import Machine
from twofold.planner.names import Amount, Devices, Name, Names, Part, Tokens
from twofold.planner.plan.plan import Choices
from twofold.planner.plan.report import PlanAnswer
from twofold.planner.plan.search import Facts, nothing_found, search
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.constants import constants_for
from twofold.planner.predict.speculation import ACCEPTANCE, TextClass

if TYPE_CHECKING:
    from twofold.planner.plan.tails import MakeLoad

SAMPLES: Final = 4096
"""Requests that represent traffic without a trace."""
STORED: Final = "stored"
"""The model's own format of weights."""


class PlanQuestion(RequestObject, kw_only=True):
    """Traffic, objectives, and alternatives of which every combination is tried."""

    models: Annotated[list[Name], Meta(min_length=1, max_length=4)]
    hardware: Annotated[list[Name], Meta(min_length=1, max_length=8)]
    rate: Annotated[float, Meta(gt=0, le=1e5, description="Requests per second.")]
    input_tokens: Tokens = 1024
    output_tokens: Tokens = 256
    shared_prefix: Annotated[float, Meta(ge=0, le=0.99)] = 0.0
    slo: PlanSlo | None = None
    tp: Annotated[list[Devices], Meta(min_length=1, max_length=8)] | None = None
    weights: Annotated[list[Name], Meta(min_length=1, max_length=6)] | None = None
    kv: Annotated[list[Name], Meta(min_length=1, max_length=6)] | None = None
    chunks: Annotated[list[Tokens], Meta(min_length=1, max_length=6)] | None = None
    split: bool = True
    text: TextClass | None = None
    acceptance: Part | None = None
    drafts: Annotated[list[Annotated[int, Meta(ge=1, le=16)]], Meta(min_length=1, max_length=4)] | None = None
    draft: Name | None = None
    max_devices: Annotated[int, Meta(ge=1, le=65_536)] = 4096
    prices: Annotated[dict[Name, Amount], Meta(max_length=8)] | None = None
    show: Annotated[int, Meta(ge=1, le=50)] = 10
    simulate: bool = True

    def answer(self, names: Names, make: MakeLoad | None = None, samples: int = SAMPLES) -> PlanAnswer:
        """The cheapest plans for the traffic of ``samples`` requests that ``make`` makes, by default of the sizes in
        the question; with 0 samples of all its requests, at their own rate if ``rate`` is 0.

        Raises ParameterError, also if nothing meets the objectives, and ModelNotFoundError.
        """
        specs = [names.spec(model) for model in self.models]
        named = [names.machine(name, specs[0], self.models[0]) for name in self.hardware if specs]
        fitted = {each.machine.name: each.constants for each in named}
        machines = {name: each.machine for name, each in zip(self.hardware, named, strict=False)}
        facts = Facts(
            lambda machine, spec: fitted.get(machine.name) or constants_for(machine, spec),
            {(machines.get(name) or find_machine(name)).name: price for name, price in (self.prices or {}).items()},
        )
        limits = self.slo or PlanSlo(ttft=1.0, tpot=0.05)
        choices = self._choices(names, tuple(specs), tuple(each.machine for each in named))
        make = make or self._load()
        traffic = Traffic.of(make(self.rate, samples), self.rate if samples or self.rate else None)
        study = search(choices, traffic, limits, facts)
        if study.plans and self.simulate:
            from twofold.planner.plan.tails import simulated  # noqa: PLC0415 - imports NumPy

            study = simulated(study, choices, traffic, limits, facts, make)
        if not study.plans:
            raise nothing_found(study, choices, traffic, limits, facts)
        return PlanAnswer(study, traffic, limits, max(1, self.show))

    def _load(self) -> MakeLoad:
        from twofold.bench.load.lengths import parse_lengths  # noqa: PLC0415 - start-up time
        from twofold.bench.load.synthetic import LoadPlan, SharedPrefix  # noqa: PLC0415
        from twofold.planner.simulate.jobs import prompt_history  # noqa: PLC0415

        sizes = [parse_lengths(str(tokens), "tokens") for tokens in (self.input_tokens, self.output_tokens)]
        shared = SharedPrefix(self.shared_prefix) if self.shared_prefix else None
        return lambda rate, requests: LoadPlan(
            rate=rate, requests=requests, input_tokens=sizes[0], output_tokens=sizes[1], shared=shared
        ).load(prompt_history, 0)

    def _choices(self, names: Names, models: tuple[ModelSpec, ...], machines: tuple[Machine, ...]) -> Choices:
        draft, acceptance = None if self.draft is None else names.spec(self.draft), self.acceptance
        if acceptance is None and self.text is not None:
            acceptance = float(ACCEPTANCE[self.text].lookup if draft is None else ACCEPTANCE[self.text].model)
        lists: dict[str, Any] = {
            "tp": self.tp,
            "weights": None if self.weights is None else map(_weights, self.weights),
            "kv": None if self.kv is None else map(find_kv_format, self.kv),
            "chunks": self.chunks,
            "drafts": self.drafts,
        }
        return Choices(
            models=models,
            machines=machines,
            **{name: tuple(values) for name, values in lists.items() if values is not None},
            split=self.split,
            acceptance=acceptance,
            draft=draft,
            devices=self.max_devices,
        )


def _weights(name: str) -> ValueFormat | None:
    return None if name == STORED else find_format(name)
