"""What the helper process computes: answers to the planner's questions, whose values are those of the checked bodies.
``here`` in them describes the model and the machine of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, convert, structs

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.values import find_format
from twofold.planner.explain.question import CurveQuestion
from twofold.planner.explain.sources import read_observed
from twofold.planner.names import HERE, NamedMachine, Names
from twofold.planner.plan.document import PlanReply
from twofold.planner.plan.question import PlanQuestion
from twofold.planner.price.document import price_document
from twofold.planner.price.question import PriceQuestion
from twofold.server.planning.bodies import ExplainRequest, Values
from twofold.server.planning.plain import from_plain

SCALE_S: Final = 5.0
"""Processor time of simulations of replicas; then the forecast says what is known."""


class ServerNames(Names):
    """Also the server's own: the model that the question names, if it is served, and the machine with how its engine
    stores that model, if it was measured."""

    def __init__(self, values: Values) -> None:
        here = values.get("here") or {}
        self._spec: ModelSpec | None = from_plain(here.get("shape"))
        self._machine = (
            NamedMachine(from_plain(here["machine"]), from_plain(here["setup"])) if "machine" in here else None
        )

    def spec(self, model: str, weights: str | None = None) -> ModelSpec:
        if self._spec is None or model != self._spec.name:
            return super().spec(model, weights)
        return self._spec if weights is None else self._spec.stored_as(find_format(weights))

    def machine(self, hardware: str, spec: ModelSpec, model: str | None) -> NamedMachine:
        if hardware != HERE:
            return super().machine(hardware, spec, model)
        if self._machine is None:
            raise ParameterError(
                "The machine of this server was not measured.",
                param="hardware",
                hint="Name one of the table, such as h100, or load a model first.",
            )
        return self._machine


def explain(values: Values) -> Struct:
    """As ``twofold explain --json``. A request of the server is in ``record``."""
    question, record = convert(values, ExplainRequest), values.get("record")
    observed = None
    if record is not None:
        observed = read_observed(record, "The request", str(question.prompt), question.goal)
        if question.hardware is None:
            question.model = None  # the machine is not known, so nothing is predicted
    return question.answer(ServerNames(values), observed).document


def curve(values: Values) -> Struct:
    """Pace against cost."""
    return convert(values, CurveQuestion).answer(ServerNames(values))


def price(values: Values) -> Struct:
    """As ``twofold price --json``."""
    return price_document(convert(values, PriceQuestion).answer(Names()))


def plan(values: Values) -> Struct:
    """As ``twofold plan --json``."""
    return PlanReply.of(convert(values, PlanQuestion).answer(Names()))


def scale(values: Values) -> Struct:
    """How many replicas a model's last requests need: a ``ScaleForecast`` of a ``ScaleQuestion``."""
    from twofold.fleet.scale import ScaleQuestion, forecast  # noqa: PLC0415 - start-up time

    began = time.process_time()
    found = forecast(convert(values, ScaleQuestion), lambda: time.process_time() > began + SCALE_S)
    return structs.replace(found, seconds=time.process_time() - began)


TASKS: Final[Mapping[str, Callable[[Values], Struct]]] = {
    "explain": explain,
    "curve": curve,
    "price": price,
    "plan": plan,
    "scale": scale,
}
