"""What the helper process computes: explanations, curves, prices and plans, as the commands of these names print them
with ``--json``. Values are those of the checked bodies; ``here`` describes the model and the machine of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.kv_layout import find_kv_format
from twofold.core.model import ModelSpec
from twofold.core.values import ValueFormat, find_format
from twofold.observe.billing import MachinePrices
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.explain import report
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.scenario import UniformScenario
from twofold.planner.explain.sources import read_observed
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import Cited, Machine
from twofold.planner.plan.plan import Choices
from twofold.planner.plan.report import study_document
from twofold.planner.plan.search import Facts, nothing_found, search
from twofold.planner.plan.traffic import Slo, Traffic
from twofold.planner.predict.constants import constants_for, errors_for
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.speculation import ACCEPTANCE
from twofold.planner.price import report as prices
from twofold.planner.price.catalog import known_catalog
from twofold.planner.price.own import OwnMachines, hourly, own_cost
from twofold.planner.price.workload import Compression, Workload, api_cost
from twofold.planner.shapes.known import named_shape
from twofold.server.planning.bodies import CHUNKS, DRAFTS, HERE, KV, TP, WEIGHTS, Values
from twofold.server.planning.plain import from_plain

CURVE_SCHEMA: Final = "twofold.curve/1"
BATCHES: Final = tuple(2**n for n in range(10))
HOUR_S: Final = 3600
SCALE_S: Final = 5.0
"""Processor time of simulations of replicas; then the forecast says what is known."""
SAMPLES: Final = 4096
"""Requests that represent the traffic of a plan, as in ``twofold plan``."""


@dataclass(frozen=True, slots=True)
class Here:
    """The server's own: a ``shape`` if the caller named a served model, and the ``machine`` with how its engine runs;
    None if it was not measured."""

    shape: ModelSpec | None
    machine: Machine | None
    how: Setting

    @classmethod
    def of(cls, values: Values) -> Here:
        given = values.get("here") or {}
        how = given.get("how")
        return cls(
            from_plain(given.get("shape")), from_plain(given.get("machine")), PLAIN if how is None else from_plain(how)
        )

    def model(self, values: Values) -> ModelSpec:
        """The named model, with its weights in the format that the caller chose."""
        weights = values.get("weights")
        if self.shape is None:
            return named_shape(values["model"], weights)
        return self.shape if weights is None else self.shape.stored_as(find_format(weights))

    def on(self, hardware: str, values: Values, tp: int) -> tuple[Machine, Setting]:
        """The machine of that name, and how it serves. Raises ParameterError."""
        kv = values.get("kv")
        form = None if kv is None else find_kv_format(kv)
        if hardware != HERE:
            return find_machine(hardware), Setting(tp=tp) if form is None else Setting(tp=tp, kv=form)
        if self.machine is None:
            raise ParameterError(
                "The machine of this server was not measured.",
                param="hardware",
                hint="Name one of the table, such as h100, or load a model first.",
            )
        return self.machine, replace(self.how, tp=tp, kv=form or self.how.kv)


def explain(values: Values) -> Mapping[str, Any]:
    """As ``twofold explain --json``. A request of the server is in ``record``."""
    here, goal = Here.of(values), values.get("goal", "e2e")
    record, seen = values.get("record"), None
    if record is not None:
        seen = read_observed(record, "The request", str(values.get("prompt", 0)), goal)
    if values.get("hardware") is None:
        return report.data(report.explain(None, seen, goal))
    machine, how = here.on(values["hardware"], values, values.get("tp", 1))
    if (disk := values.get("disk_gbs")) is not None:
        machine = replace(machine, disk=Cited(disk * 1e9, "given by disk_gbs"))
    case = _case(values, None if seen is None else report.case_of(seen), values.get("batch"))
    scenario = report.scenario_of(here.model(values), machine, case, how)
    return report.data(report.explain(scenario, seen, goal, _assumptions(values), values.get("levers") or ()))


def _case(values: Values, like: Case | None, batch: int | None) -> Case:
    given = {
        "prompt": values.get("input_tokens"),
        "output": values.get("output_tokens"),
        "cached": values.get("cached"),
        "loaded": values.get("loaded"),
        "chunk": values.get("chunk"),
        "concurrency": batch,
    }
    base = like or Case(prompt=512, output=128)
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _assumptions(values: Values) -> Assumptions:
    scorer = values.get("scorer")
    names = {"text": "text", "acceptance": "acceptance", "draft": "draft_cost", "keeps": "keep", "shared": "shared"}
    given = {name: values[field] for name, field in names.items() if values.get(field) is not None}
    return Assumptions(**given, scorer=None if scorer is None else named_shape(scorer))


def curve(values: Values) -> Mapping[str, Any]:
    """TPOT, TTFT, speed and cost of each batch on each machine; batches that do not fit in memory are missing.

    Dollars are of a million output tokens, with machines that are always busy; null without a price.
    """
    here = Here.of(values)
    shape = here.model(values)
    return {
        "schema": CURVE_SCHEMA,
        "model": shape.name,
        "curves": [_curve(here, shape, values, each) for each in values["machines"]],
    }


def _curve(here: Here, shape: ModelSpec, values: Values, asked: Values) -> Mapping[str, Any]:
    tp = asked.get("tp", 1)
    machine, how = here.on(asked["hardware"], values, tp)
    constants = constants_for(machine, shape)
    errors = errors_for(shape, machine, constants)
    price = asked.get("price_per_hour")
    price = machine.price if price is None else price
    predictor = Predictor(shape, machine, constants, how)
    points = []
    for batch in sorted(set(values.get("batches") or BATCHES)):
        scenario = UniformScenario(predictor, _case(values, None, batch))
        if batch > scenario.sequences:
            break
        found = scenario.prediction
        hourly_tokens = found.tokens_per_s * HOUR_S
        points.append(
            {
                "batch": batch,
                "ttft_s": found.ttft,
                "tpot_s": found.tpot if scenario.further else None,
                "e2e_s": found.e2e,
                "tokens_per_s": found.tokens_per_s,
                "tokens_per_s_per_device": found.tokens_per_s / found.devices,
                "dollars_per_million": None if price is None else 1e6 * price * tp / hourly_tokens,
            }
        )
    return {
        "hardware": machine.name,
        "tp": tp,
        "price_per_hour": None if price is None else float(price),
        "error": {"ttft": errors.ttft, "tpot": errors.tpot},
        "points": points,
    }


def price(values: Values) -> Mapping[str, Any]:
    """As ``twofold price --json``."""
    catalog, at = known_catalog(), datetime.now(UTC)
    sizes = {name: values[name] for name in ("input_tokens", "output_tokens", "requests_per_day", "ttl", "tier")}
    workload = Workload(**sizes, session=values.get("session"), prefix_tokens=values.get("cached", 0))
    api = api_cost(catalog.find(values["model"]), workload, at)
    ratio, own = values.get("compress"), values.get("own")
    compression = None if ratio is None else Compression(ratio, values["compressor_price"])
    ours = None
    if own is not None:
        machines = _own(own)
        ours = machines, _own_cost(machines, workload), float(api.per_request)
    return prices.price_document(api, catalog, at, compression=compression, own=ours)


def _own_cost(machines: OwnMachines, workload: Workload) -> Any:
    try:
        return own_cost(machines, workload)
    except ResourceError as error:  # of that machine, not of this one
        raise ParameterError(str(error), param="own", hint=error.hint) from None


def _own(own: Values) -> OwnMachines:
    machine = find_machine(own["hardware"])
    shape = Here(None, None, PLAIN).model(own)
    paid = (own.get("price_per_hour"), own.get("price_per_kwh"), own.get("capital"))
    watts = machine.watts if own.get("watts") is None and own.get("price_per_kwh") is not None else own.get("watts")
    per_hour = hourly(
        _decimal(machine.price if paid == (None, None, None) else own.get("price_per_hour")),
        watts=_decimal(watts),
        per_kwh=_decimal(own.get("price_per_kwh")),
        capital=_decimal(own.get("capital")),
        years=Decimal(repr(float(own["years"]))),
    )
    how = Setting(tp=own["tp"], kv=find_kv_format(own["kv"]))
    return OwnMachines(
        shape, machine, MachinePrices(per_hour, Decimal(repr(float(own["busy_share"])))), how, own.get("batch_size")
    )


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(repr(float(number)))


def plan(values: Values) -> Mapping[str, Any]:
    """As ``twofold plan --json``."""
    from twofold.bench.load.synthetic import LoadPlan, SharedPrefix  # noqa: PLC0415 - start-up time
    from twofold.planner.simulate.jobs import prompt_history  # noqa: PLC0415

    choices = _choices(values)
    limits = values.get("slo") or {"ttft": 1.0, "tpot": 0.05}
    slo = Slo(**{name: value for name, value in limits.items() if value is not None})
    named = {find_machine(name).name: dollars for name, dollars in (values.get("prices") or {}).items()}
    facts = Facts(prices=named)
    prefix = values.get("shared_prefix", 0.0)
    lengths = {
        "input_tokens": _fixed(values["input_tokens"]),
        "output_tokens": _fixed(values["output_tokens"]),
        "shared": SharedPrefix(prefix) if prefix else None,
    }

    def make(rate: float, requests: int) -> Any:
        return LoadPlan(rate=rate, requests=requests, **lengths).load(prompt_history, 0)

    wanted = Traffic.of(make(values["rate"], SAMPLES), values["rate"])
    study = search(choices, wanted, slo, facts)
    if study.plans and values.get("simulate", True):
        from twofold.planner.plan.tails import simulated  # noqa: PLC0415

        study = simulated(study, choices, wanted, slo, facts, make)
    if not study.plans:
        raise nothing_found(study, choices, wanted, slo, facts)
    return study_document(study, wanted, slo, values.get("show", 10))


def _fixed(tokens: int) -> Any:
    from twofold.bench.load.lengths import parse_lengths  # noqa: PLC0415

    return parse_lengths(str(tokens), "tokens")


def _choices(values: Values) -> Choices:
    draft, text, rate = values.get("draft"), values.get("text"), values.get("acceptance")
    if rate is None and text is not None:
        rate = float(ACCEPTANCE[text].lookup if draft is None else ACCEPTANCE[text].model)
    return Choices(
        models=tuple(map(named_shape, values["models"])),
        machines=tuple(map(find_machine, values["hardware"])),
        tp=tuple(values.get("tp") or TP),
        weights=tuple(map(_weights, values.get("weights") or WEIGHTS)),
        kv=tuple(map(find_kv_format, values.get("kv") or KV)),
        chunks=tuple(values.get("chunks") or CHUNKS),
        split=values.get("split", True),
        acceptance=rate,
        drafts=tuple(values.get("drafts") or DRAFTS),
        draft=None if draft is None else named_shape(draft),
        devices=values.get("max_devices", 4096),
    )


def _weights(name: str) -> ValueFormat | None:
    return None if name == WEIGHTS[0] else find_format(name)


def scale(values: Values) -> Mapping[str, Any]:
    """How many replicas a model's last requests need: a ``ScaleForecast`` of a ``ScaleQuestion``."""
    from twofold.fleet.scale import ScaleQuestion, forecast  # noqa: PLC0415 - start-up time

    began = time.process_time()
    found = forecast(msgspec.convert(values, ScaleQuestion), lambda: time.process_time() > began + SCALE_S)
    found = msgspec.structs.replace(found, seconds=time.process_time() - began)
    plain: Mapping[str, Any] = msgspec.to_builtins(found, str_keys=True)
    return plain


TASKS: Final[Mapping[str, Callable[[Values], Mapping[str, Any]]]] = {
    "explain": explain,
    "curve": curve,
    "price": price,
    "plan": plan,
    "scale": scale,
}
