"""An explanation as lines for a terminal and as plain data: where the time goes, how close it is to the floor, and the
gains of levers.

hypothetical    a model, a machine and equal requests: everything is predicted
measured        a request that ended, with predictions if its model and a machine are named"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import wrap
from typing import Any, Final

from twofold.bench.draw.form import NONE, duration, share
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.values import INT4, INT8
from twofold.planner.count.setting import Setting
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.picture import roofline, roofline_points
from twofold.planner.explain.rank import (
    MIN_GAIN,
    LeverStack,
    Outcome,
    Status,
    TurnedLever,
    apply_all,
    find_levers,
)
from twofold.planner.explain.scenario import (
    GOAL_WORDS,
    GOALS,
    Goal,
    Observed,
    Phase,
    ScenarioFigures,
    UniformScenario,
    Waterfall,
    waterfall,
)
from twofold.planner.explain.words import factor, listed, size
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants, constants_for, error_words, errors_for
from twofold.planner.predict.request import Case, Predictor
from twofold.planner.predict.steps import StepParts

MAX_DEVICES: Final = 64
"""Maximum devices that a hint suggests."""
SCHEMA: Final = "twofold.explain/1"
BAR_WIDTH: Final = 24
NAME_WIDTH: Final = 20
MIN_PART: Final = 0.03
"""Parts below this share of their phase are not shown."""
STATUS_WORDS: Final[Mapping[Status, str]] = {
    "gains": "Gain",
    "felt": "Perceived latency",
    "no gain": "No gain here",
    "in use": "Already in use",
    "cannot": "Not applicable here",
}
SHORT: Final[Mapping[Goal, str]] = {
    "e2e": "E2E", "ttft": "TTFT", "tpot": "TPOT", "gap": "gap", "throughput": "tok/s",
}  # fmt: skip
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``scenario`` and ``figures`` are None for a request of unknown model or machine. They include the levers that are
    ``turned``; ``before`` are the figures without these, None if none is turned."""

    title: str
    goal: Goal
    waterfall: Waterfall
    scenario: UniformScenario | None
    figures: ScenarioFigures | None
    levers: tuple[Outcome, ...]
    observed: Observed | None = None
    notes: tuple[str, ...] = ()
    turned: tuple[TurnedLever, ...] = ()
    before: ScenarioFigures | None = None


def scenario_of(
    shape: ModelSpec,
    machine: Machine,
    case: Case,
    how: Setting,
    constants: Constants | None = None,
) -> UniformScenario:
    """A hypothetical scenario. Raises ParameterError if one request does not fit in memory; the hint says what fits."""
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
    turned: Sequence[str] = (),
) -> Explanation:
    """Explains a scenario, a measured request, or both: the scenario of a request's ``case_of`` adds predictions.

    ``turned``: names of levers that change the scenario first. Raises ParameterError for an unknown one.
    """
    notes = [] if seen is None else list(seen.notes)
    if scenario is None:
        notes.append("Name its model and its machine (--model, --hardware) for predictions and levers.")
        return Explanation(_title(scenario, seen), goal, waterfall(None, seen), None, None, (), seen, tuple(notes))
    stack = LeverStack.of(scenario, assumptions or Assumptions(), find_levers(turned))
    before = scenario.figures() if turned else None
    scenario, figures = stack.scenario, stack.figures()
    if goal not in figures.goals:
        message = f"A request with one output token has no {GOAL_WORDS[goal]} to rank levers by."
        raise ParameterError(message, param="goal", hint="Use longer outputs, or another goal.")
    predictor = scenario.predictor
    if seen is not None:
        notes.append(f"Predicted for {describe(scenario)}.")
    notes.append(error_words(errors_for(predictor.shape, predictor.machine, predictor.constants)))
    return Explanation(
        _title(scenario, seen),
        goal,
        waterfall(scenario, seen, stack.now),
        scenario,
        figures,
        apply_all(stack, goal, seen),
        seen,
        tuple(notes),
        stack.turned,
        before,
    )


def _title(scenario: UniformScenario | None, seen: Observed | None) -> str:
    if seen is None:
        return "" if scenario is None else describe(scenario)
    cached = f" ({seen.cached:,} cached)" if seen.cached else ""
    return f"{seen.title}: {seen.prompt:,} prompt tokens{cached}, {seen.output:,} output tokens"


def case_of(seen: Observed) -> Case:
    """Equal requests with the sizes of a measured one, and its mean concurrency."""
    cached = max(0, min(seen.cached, seen.prompt - 1))
    loaded = min(seen.loaded, cached)
    return Case(
        prompt=max(1, seen.prompt),
        output=max(1, seen.output),
        cached=cached - loaded,
        loaded=loaded,
        concurrency=max(1, round(seen.batch)),
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
    """Options that each make room alone: smaller weights, and the fewest devices."""
    smaller = [(form, scenario.having(shape=scenario.shape.stored_as(form))) for form in (INT8, INT4)]
    fitting = [f"--weights {form.name} ({size(each.weight_bytes)})" for form, each in smaller if each.sequences > 0]
    devices = 2 * scenario.how.tp
    while devices <= MAX_DEVICES and not _fits(scenario, devices):
        devices *= 2
    return fitting if devices > MAX_DEVICES else [*fitting, f"--tp {devices}"]


def _fits(scenario: UniformScenario, devices: int) -> bool:
    try:
        return scenario.having(how=replace(scenario.how, tp=devices)).sequences > 0
    except ParameterError:
        return False


def lines(given: Explanation, *, levers: int | None = None, width: int = 100) -> Iterator[str]:
    """Lines for a terminal; of the levers that gain, the first ``levers``."""
    yield given.title
    for each in given.turned:
        yield from _hanging(f"  with {each.lever:<{NAME_WIDTH}}", each.what or f"not applied: {each.why}", width)
    yield ""
    yield from _waterfall_lines(given.waterfall, measured=given.observed is not None, width=width)
    if given.figures is not None:
        yield ""
        yield _figures_line(given.figures)
    if given.levers:
        yield ""
        yield from _all_lever_lines(given, levers, width)
    for note in given.notes:
        yield from _wrapped(note, width)


def data(given: Explanation) -> dict[str, Any]:
    """Plain data: seconds, bytes, factors (above 1 is better) and shares from 0 to 1; null is unknown."""
    fall, scenario = given.waterfall, given.scenario
    return {
        "schema": SCHEMA,
        "title": given.title,
        "goal": given.goal,
        "scenario": None if scenario is None else _scenario_data(scenario),
        "seconds": fall.seconds,
        "predicted_s": fall.predicted,
        "floor_s": fall.floor,
        "phases": [_phase_data(phase) for phase in fall.phases],
        "figures": None if given.figures is None else asdict(given.figures),
        "turned": [asdict(each) for each in given.turned],
        "before": None if given.before is None else asdict(given.before),
        "roofline": [asdict(each) for each in roofline_points(scenario, fall)] if scenario else [],
        "chart": roofline(scenario, fall).document() if scenario else None,
        "levers": [_lever_data(each) for each in given.levers],
        "notes": list(given.notes),
    }


def _waterfall_lines(fall: Waterfall, *, measured: bool, width: int) -> Iterator[str]:
    begin, whole = 0.0, fall.seconds
    head = f"{'':<{BAR_WIDTH + 9}} {'took' if measured else 'predicted':>9}"
    yield (
        head
        + (f" {'predicted':>11}" if measured else "")
        + f" {'floor':>9} {'% floor':>7}  {'predicted breakdown' if measured else 'where the time goes'}"
    )
    for phase in fall.phases:
        yield from _phase_lines(phase, _bar(begin, phase.seconds, whole), measured=measured, width=width)
        begin += phase.seconds
    guess = f" {duration(fall.predicted):>11}" if measured else ""
    reached = share(round(fall.floor / whole, 3)) if whole > 0 and fall.floor else NONE
    yield f"{'total':<8} {'':{BAR_WIDTH}} {duration(whole):>9}{guess} {duration(fall.floor):>9} {reached:>7}"


def _phase_lines(phase: Phase, bar: str, *, measured: bool, width: int) -> Iterator[str]:
    guess = f" {duration(phase.predicted):>11}" if measured else ""
    reached = NONE if phase.share is None else share(round(phase.share, 3))
    start = f"{phase.name:<8} {bar} {duration(phase.seconds):>9}{guess} {duration(phase.floor):>9} {reached:>7}  "
    words = "; ".join(filter(None, (_spent_on(phase), phase.why if phase.seconds else "")))
    yield from _hanging(start, words, width)


def _spent_on(phase: Phase) -> str:
    """memory 92% (weights 85%, KV 7%), overhead 6%."""
    if phase.parts is None or not phase.seconds or not phase.parts.seconds:
        return phase.bound or ""
    seconds = phase.parts.seconds
    sums = {name: value / seconds for name, value in _groups(phase.parts).items() if value >= MIN_PART * seconds}
    return ", ".join(f"{name} {part:.0%}" for name, part in sorted(sums.items(), key=lambda item: -item[1]))


def _groups(parts: StepParts) -> dict[str, float]:
    return {
        "weights from memory": parts.weights,
        "KV from memory": parts.kv,
        "arithmetic": parts.arithmetic,
        "link": parts.links,
        "overhead": parts.overhead,
    }


def _bar(begin: float, seconds: float, whole: float) -> str:
    """A phase's part of the whole as a bar, in steps of an eighth of a character; at least one step for any time."""
    if whole <= 0:
        return " " * BAR_WIDTH
    first, last = (round(8 * BAR_WIDTH * each / whole) for each in (begin, begin + seconds))
    if seconds > 0:
        first = min(first, 8 * BAR_WIDTH - 1)
        last = max(last, first + 1)
    cells = []
    for cell in range(BAR_WIDTH):
        low, high = max(first - 8 * cell, 0), min(last - 8 * cell, 8)
        cells.append(" " if high <= 0 or low >= 8 else "█" if low < 8 and high >= 8 else EIGHTHS[high])
    return "".join(cells)


def _figures_line(found: ScenarioFigures) -> str:
    times = ("TTFT", found.ttft), ("TPOT", found.tpot), ("longest gap", found.gap)
    return (
        f"{' · '.join(f'{name} {duration(time)}' for name, time in times if time is not None)} · "
        f"{found.throughput:,.3g} tokens/s per device · {size(found.memory)} of memory, "
        f"{found.sequences:,} sequences fit"
    )


def _all_lever_lines(given: Explanation, shown: int | None, width: int) -> Iterator[str]:
    yield f"Levers, ranked by {GOAL_WORDS[given.goal]}"
    goals = GOALS if given.figures is None else given.figures.goals
    yield " " * NAME_WIDTH + "".join(f"{SHORT[goal]:>8}" for goal in goals)
    status: Status = "gains"
    gaining = [each for each in given.levers if each.status == "gains"]
    for outcome in gaining[:shown]:
        yield from _lever_lines(outcome, goals, width)
    rest = gaining[len(gaining) if shown is None else shown :]
    if rest:
        yield from _wrapped(f"Smaller gains: {listed([_short(each, given.goal) for each in rest])}.", width, 2)
    for outcome in given.levers[len(gaining) :]:
        if outcome.status != status:
            status = outcome.status
            yield f"{STATUS_WORDS[status]}:"
        if outcome.after:
            yield from _lever_lines(outcome, goals, width)
        else:
            yield from _short_lever_lines(outcome, given.goal, width)


def _lever_lines(outcome: Outcome, goals: Sequence[Goal], width: int) -> Iterator[str]:
    yield f"  {outcome.lever:<{NAME_WIDTH - 2}}" + "".join(f"{factor(outcome.gain(goal)):>8}" for goal in goals)
    yield from _wrapped(f"{outcome.what}. {outcome.why} Costs: {outcome.costs}.{_measured(outcome)}", width, 6)


def _short_lever_lines(outcome: Outcome, goal: Goal, width: int) -> Iterator[str]:
    """Lines of a lever that is in use or cannot help."""
    gain = outcome.gain(goal)
    given = f"Already gives {factor(gain)} {SHORT[goal]}. " if gain >= MIN_GAIN else ""
    yield from _hanging(f"  {outcome.lever:<{NAME_WIDTH}}", given + outcome.why + _measured(outcome), width)


def _measured(outcome: Outcome) -> str:
    if outcome.measured:
        return f" Measured: {outcome.measured.words}"
    return f" Benchmarks measured {outcome.benchmark}." if outcome.benchmark else ""


def _short(outcome: Outcome, goal: Goal) -> str:
    return f"{outcome.lever} {factor(outcome.gain(goal))}"


def _hanging(head: str, text: str, width: int) -> Iterator[str]:
    first, *rest = wrap(text, max(30, width - len(head))) or [""]
    yield (head + first).rstrip()
    yield from (" " * len(head) + line for line in rest)


def _wrapped(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from (" " * indent + line for line in wrap(text, width - indent))


def _scenario_data(scenario: UniformScenario) -> dict[str, Any]:
    case, constants = scenario.case, scenario.predictor.constants
    return {
        "words": describe(scenario),
        "model": scenario.shape.name,
        "hardware": scenario.predictor.machine.name,
        "weights": scenario.weights.name,
        "kv": scenario.how.kv.name,
        "tp": scenario.how.tp,
        "input_tokens": case.prompt,
        "cached_tokens": case.cached,
        "output_tokens": case.output,
        "batch": case.concurrency,
        "chunk": case.chunk,
        "constants": {name: value.document() for name, value in constants.values().items()},
        "error": None if constants.error is None else float(constants.error),
    }


def _phase_data(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "seconds": phase.seconds,
        "actual_s": phase.actual,
        "predicted_s": phase.predicted,
        "prediction_error": phase.error,
        "floor_s": phase.floor,
        "share": phase.share,
        "bound": phase.bound,
        "parts_s": None if phase.parts is None else phase.parts._asdict(),
        "why": phase.why or None,
    }


def _lever_data(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "helps": list(outcome.helps), "what": outcome.what or None}
