"""The whole explanation: where the time goes, how near that is to the floor, and the gains of levers.

hypothetical    a model, a machine and equal requests: everything is predicted
measured        a request that ended, with predictions if its model and a machine are named"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.values import INT4, INT8
from twofold.planner.count.setting import Setting
from twofold.planner.explain.levers.base import Assumptions
from twofold.planner.explain.levers.rank import Outcome, turn_all
from twofold.planner.explain.scenario import Goal, ScenarioFigures, UniformScenario
from twofold.planner.explain.waterfall import Observed, Waterfall, waterfall
from twofold.planner.explain.words import listed, size
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants, constants_for
from twofold.planner.predict.errors import error_words, errors_for
from twofold.planner.predict.request import Case, Predictor

MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Explanation:
    """``scenario`` and ``figures`` are None for a request of unknown model or machine."""

    title: str
    goal: Goal
    waterfall: Waterfall
    scenario: UniformScenario | None
    figures: ScenarioFigures | None
    levers: tuple[Outcome, ...]
    observed: Observed | None = None
    notes: tuple[str, ...] = ()


def scenario_of(
    shape: ModelSpec,
    machine: Machine,
    case: Case,
    how: Setting,
    constants: Constants | None = None,
) -> UniformScenario:
    """A hypothetical. Raises ParameterError with ways that fit if the memory does not hold one request."""
    found = UniformScenario(Predictor(shape, machine, constants or constants_for(machine, shape), how), case)
    try:
        found.predictor.batch(case)
    except ParameterError as error:
        ways = _ways_to_fit(found)
        hint = f"It fits with {listed(ways, 'or')}." if ways else error.hint
        raise ParameterError(str(error), param=error.param, hint=hint) from None
    return found


def explain(
    scenario: UniformScenario | None,
    seen: Observed | None = None,
    goal: Goal = "e2e",
    assumptions: Assumptions | None = None,
) -> Explanation:
    """What is predicted, measured, or both: a ``scenario`` (as ``like`` makes it) adds predictions and levers."""
    notes = [] if seen is None else list(seen.notes)
    if scenario is None:
        notes.append("Name its model and its machine (--model, --hardware) for predictions and levers.")
        return Explanation(_title(scenario, seen), goal, waterfall(None, seen), None, None, (), seen, tuple(notes))
    predictor = scenario.predictor
    if seen is not None:
        notes.append(f"Predicted for {describe(scenario)}.")
    notes.append(error_words(errors_for(predictor.shape, predictor.machine, predictor.constants)))
    return Explanation(
        _title(scenario, seen),
        goal,
        waterfall(scenario, seen),
        scenario,
        scenario.figures(),
        turn_all(scenario, goal, assumptions),
        seen,
        tuple(notes),
    )


def _title(scenario: UniformScenario | None, seen: Observed | None) -> str:
    if seen is None:
        return "" if scenario is None else describe(scenario)
    cached = f" ({seen.cached:,} cached)" if seen.cached else ""
    return f"{seen.title}: {seen.prompt:,} prompt tokens{cached}, {seen.output:,} output tokens"


def like(seen: Observed, chunk: int | None = None) -> Case:
    """Equal requests of the sizes of a measured one, with its mean concurrency."""
    cached = min(seen.cached, seen.prompt - 1)
    return Case(
        prompt=max(1, seen.prompt),
        output=max(1, seen.output),
        cached=max(0, cached),
        concurrency=max(1, round(seen.batch)),
        chunk=chunk,
    )


def describe(scenario: UniformScenario) -> str:
    """llama-3-70b (bf16, KV bf16) on 4 × h100: 2,000 prompt tokens, 300 output tokens, concurrency 16."""
    case, how = scenario.case, scenario.how
    devices = f"{how.tp} × " if how.tp > 1 else ""
    cached = f" ({case.cached:,} cached)" if case.cached else ""
    chunk = f", chunks of {case.chunk:,}" if case.chunk else ""
    stored = f"{scenario.shape.name} ({scenario.weights.name}, KV {how.kv.name})"
    asked = f"{case.prompt:,} prompt tokens{cached}, {case.output:,} output tokens, concurrency {case.concurrency:,}"
    return f"{stored} on {devices}{scenario.predictor.machine.name}: {asked}{chunk}"


def _ways_to_fit(scenario: UniformScenario) -> list[str]:
    """Options that make room, each alone."""
    shape, how = scenario.shape, scenario.how
    tried: list[tuple[str, ModelSpec, Setting]] = [
        (f"--weights {form.name} ({size(scenario.having(shape=shape.stored_as(form)).weight_bytes)})",
         shape.stored_as(form), how)
        for form in (INT8, INT4)
    ]  # fmt: skip
    devices = how.tp
    while 2 * devices <= MAX_DEVICES:
        devices *= 2
        tried.append((f"--tp {devices}", shape, replace(how, tp=devices)))
    fitting: list[str] = []
    for words, changed_shape, changed_how in tried:
        if _fits(scenario, changed_shape, changed_how):
            fitting.append(words)
            if words.startswith("--tp"):
                break
    return fitting


def _fits(scenario: UniformScenario, shape: ModelSpec, how: Setting) -> bool:
    try:
        return scenario.having(shape=shape, how=how).sequences > 0
    except ParameterError:
        return False
