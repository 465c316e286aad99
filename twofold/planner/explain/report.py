"""An explanation, and its lines for a terminal: where the time goes, how close it is to the floor, and the gains of
levers.

hypothetical    a model, a machine and equal requests: everything is predicted
measured        a request that ended, with predictions if its model and a machine are named"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, Final, NamedTuple

from twofold.bench.draw.chart import Chart
from twofold.bench.draw.form import NONE, duration, share
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.values import INT4, INT8
from twofold.planner.count.setting import Setting
from twofold.planner.documents import ChartReply
from twofold.planner.explain.document import ExplainedPhase, ExplainedScenario, ExplainReply, describe
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.picture import roofline, roofline_points
from twofold.planner.explain.rank import MIN_GAIN, LeverOutcome, LeverStack, Status, apply_all, find_levers
from twofold.planner.explain.scenario import (
    GOAL_WORDS,
    GOALS,
    Figures,
    Goal,
    Observed,
    UniformScenario,
    Waterfall,
    waterfall,
)
from twofold.planner.explain.words import factor, listed, size
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants, constants_for, error_words, errors_for
from twofold.planner.predict.request import Case, Predictor

MAX_DEVICES: Final = 64
"""Maximum devices that a hint suggests."""
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
PARTS: Final = {
    "weights": "weights from memory",
    "kv": "KV from memory",
    "arithmetic": "arithmetic",
    "links": "link",
    "overhead": "overhead",
}
"""The parts of a phase, in words."""
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Explanation(NamedTuple):
    """The document, and its roofline as a chart; None for a request of unknown model or machine."""

    document: ExplainReply
    chart: Chart | None = None


def scenario_of(
    spec: ModelSpec,
    machine: Machine,
    requests: Case,
    setup: Setting,
    constants: Constants | None = None,
) -> UniformScenario:
    """A hypothetical scenario. Raises ParameterError if one request does not fit in memory; the hint says what fits."""
    predictor = Predictor(spec, machine, constants or constants_for(machine, spec), setup)
    scenario = UniformScenario(predictor, requests)
    try:
        predictor.batch(requests)
    except ParameterError as error:
        ways = _ways_to_fit(scenario)
        hint = f"It fits with {listed(ways, 'or')}." if ways else error.hint
        raise ParameterError(str(error), param=error.param, hint=hint) from None
    return scenario


def explain(
    scenario: UniformScenario | None,
    observed: Observed | None = None,
    goal: Goal = "e2e",
    assumptions: Assumptions | None = None,
    turned: Sequence[str] = (),
) -> Explanation:
    """Explains a scenario, a measured request, or both: the scenario of a request's ``requests_like`` adds predictions.

    ``turned``: names of levers that change the scenario first. Raises ParameterError for an unknown one.
    """
    notes = [] if observed is None else list(observed.notes)
    if scenario is None:
        notes.append("Name its model and its machine (--model, --hardware) for predictions and levers.")
        return Explanation(_document(waterfall(None, observed), goal, notes, title=_title(scenario, observed)))
    stack = LeverStack.of(scenario, assumptions or Assumptions(), find_levers(turned))
    before = scenario.figures() if turned else None
    scenario, figures = stack.scenario, stack.figures()
    if goal not in figures.goals:
        message = f"A request with one output token has no {GOAL_WORDS[goal]} to rank levers by."
        raise ParameterError(message, param="goal", hint="Use longer outputs, or another goal.")
    predictor = scenario.predictor
    if observed is not None:
        notes.append(f"Predicted for {describe(scenario)}.")
    notes.append(error_words(errors_for(predictor.shape, predictor.machine, predictor.constants)))
    phases = waterfall(scenario, observed, stack.now)
    chart = roofline(scenario, phases)
    document = _document(
        phases,
        goal,
        notes,
        title=_title(scenario, observed),
        scenario=ExplainedScenario.of(scenario),
        figures=figures,
        turned=stack.turned,
        before=before,
        roofline=roofline_points(scenario, phases),
        chart=ChartReply.of(chart),
        levers=apply_all(stack, goal, observed),
    )
    return Explanation(document, chart)


def _document(phases: Waterfall, goal: Goal, notes: list[str], **fields: Any) -> ExplainReply:
    return ExplainReply(
        goal=goal,
        seconds=phases.seconds,
        predicted_s=phases.predicted,
        floor_s=phases.floor,
        phases=[ExplainedPhase.of(phase) for phase in phases.phases],
        notes=notes,
        **fields,
    )


def _title(scenario: UniformScenario | None, observed: Observed | None) -> str:
    if observed is None:
        return "" if scenario is None else describe(scenario)
    cached = f" ({observed.cached:,} cached)" if observed.cached else ""
    return f"{observed.title}: {observed.prompt:,} prompt tokens{cached}, {observed.output:,} output tokens"


def requests_like(observed: Observed) -> Case:
    """Equal requests with the sizes of a measured one, and its mean concurrency."""
    cached = max(0, min(observed.cached, observed.prompt - 1))
    loaded = min(observed.loaded, cached)
    return Case(
        prompt=max(1, observed.prompt),
        output=max(1, observed.output),
        cached=cached - loaded,
        loaded=loaded,
        concurrency=max(1, round(observed.batch)),
    )


def _ways_to_fit(scenario: UniformScenario) -> list[str]:
    """Options that each make room alone: smaller weights, and the fewest devices."""
    smaller = [(form, scenario.having(shape=scenario.shape.stored_as(form))) for form in (INT8, INT4)]
    fitting = [f"--weights {form.name} ({size(each.weight_bytes)})" for form, each in smaller if each.sequences > 0]
    devices = 2 * scenario.setup.tp
    while devices <= MAX_DEVICES and not _fits(scenario, devices):
        devices *= 2
    return fitting if devices > MAX_DEVICES else [*fitting, f"--tp {devices}"]


def _fits(scenario: UniformScenario, devices: int) -> bool:
    try:
        return scenario.having(setup=replace(scenario.setup, tp=devices)).sequences > 0
    except ParameterError:
        return False


def lines(explanation: Explanation, *, levers: int | None = None, width: int = 100) -> Iterator[str]:
    """Lines for a terminal; of the levers that gain, the first ``levers``."""
    document = explanation.document
    yield document.title
    for each in document.turned:
        yield from _hanging(f"  with {each.lever:<{NAME_WIDTH}}", each.what or f"not applied: {each.why}", width)
    yield ""
    yield from _phases_lines(document, width)
    if document.figures is not None:
        yield ""
        yield _figures_line(document.figures)
    if document.levers:
        yield ""
        yield from _all_lever_lines(document, levers, width)
    for note in document.notes:
        yield from _wrapped(note, width)


def _phases_lines(document: ExplainReply, width: int) -> Iterator[str]:
    begin, whole, floor = 0.0, document.seconds, document.floor_s
    measured = any(phase.actual_s is not None for phase in document.phases)
    head = f"{'':<{BAR_WIDTH + 9}} {'took' if measured else 'predicted':>9}"
    yield (
        head
        + (f" {'predicted':>11}" if measured else "")
        + f" {'floor':>9} {'% floor':>7}  {'predicted breakdown' if measured else 'where the time goes'}"
    )
    for phase in document.phases:
        yield from _phase_lines(phase, _bar(begin, phase.seconds, whole), measured=measured, width=width)
        begin += phase.seconds
    guess = f" {duration(document.predicted_s):>11}" if measured else ""
    reached = share(round(floor / whole, 3)) if whole > 0 and floor else NONE
    yield f"{'total':<8} {'':{BAR_WIDTH}} {duration(whole):>9}{guess} {duration(floor):>9} {reached:>7}"


def _phase_lines(phase: ExplainedPhase, bar: str, *, measured: bool, width: int) -> Iterator[str]:
    guess = f" {duration(phase.predicted_s):>11}" if measured else ""
    reached = NONE if phase.share is None else share(round(phase.share, 3))
    start = f"{phase.name:<8} {bar} {duration(phase.seconds):>9}{guess} {duration(phase.floor_s):>9} {reached:>7}  "
    words = "; ".join(filter(None, (_spent_on(phase), phase.why if phase.seconds else "")))
    yield from _hanging(start, words, width)


def _spent_on(phase: ExplainedPhase) -> str:
    """memory 92% (weights 85%, KV 7%), overhead 6%."""
    parts = {} if phase.parts_s is None else {name: getattr(phase.parts_s, field) for field, name in PARTS.items()}
    seconds = sum(parts.values())
    if not phase.seconds or not seconds:
        return phase.bound or ""
    shown = {name: part / seconds for name, part in parts.items() if part >= MIN_PART * seconds}
    return ", ".join(f"{name} {part:.0%}" for name, part in sorted(shown.items(), key=lambda item: -item[1]))


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


def _figures_line(found: Figures) -> str:
    times = ("TTFT", found.ttft), ("TPOT", found.tpot), ("longest gap", found.gap)
    return (
        f"{' · '.join(f'{name} {duration(time)}' for name, time in times if time is not None)} · "
        f"{found.throughput:,.3g} tokens/s per device · {size(found.memory)} of memory, "
        f"{found.sequences:,} sequences fit"
    )


def _all_lever_lines(document: ExplainReply, shown: int | None, width: int) -> Iterator[str]:
    yield f"Levers, ranked by {GOAL_WORDS[document.goal]}"
    goals = GOALS if document.figures is None else document.figures.goals
    yield " " * NAME_WIDTH + "".join(f"{SHORT[goal]:>8}" for goal in goals)
    status: Status = "gains"
    gaining = [each for each in document.levers if each.status == "gains"]
    for outcome in gaining[:shown]:
        yield from _lever_lines(outcome, goals, width)
    rest = gaining[len(gaining) if shown is None else shown :]
    if rest:
        yield from _wrapped(f"Smaller gains: {listed([_short(each, document.goal) for each in rest])}.", width, 2)
    for outcome in document.levers[len(gaining) :]:
        if outcome.status != status:
            status = outcome.status
            yield f"{STATUS_WORDS[status]}:"
        if outcome.after:
            yield from _lever_lines(outcome, goals, width)
        else:
            yield from _short_lever_lines(outcome, document.goal, width)


def _lever_lines(outcome: LeverOutcome, goals: Sequence[Goal], width: int) -> Iterator[str]:
    yield f"  {outcome.lever:<{NAME_WIDTH - 2}}" + "".join(f"{factor(outcome.gain(goal)):>8}" for goal in goals)
    yield from _wrapped(f"{outcome.what}. {outcome.why} Costs: {outcome.costs}.{_measured(outcome)}", width, 6)


def _short_lever_lines(outcome: LeverOutcome, goal: Goal, width: int) -> Iterator[str]:
    """Lines of a lever that is in use or cannot help."""
    gain = outcome.gain(goal)
    given = f"Already gives {factor(gain)} {SHORT[goal]}. " if gain >= MIN_GAIN else ""
    yield from _hanging(f"  {outcome.lever:<{NAME_WIDTH}}", given + outcome.why + _measured(outcome), width)


def _measured(outcome: LeverOutcome) -> str:
    if outcome.measured:
        return f" Measured: {outcome.measured.words}"
    return f" Benchmarks measured {outcome.benchmark}." if outcome.benchmark else ""


def _short(outcome: LeverOutcome, goal: Goal) -> str:
    return f"{outcome.lever} {factor(outcome.gain(goal))}"


def _hanging(head: str, text: str, width: int) -> Iterator[str]:
    first, *rest = wrap(text, max(30, width - len(head))) or [""]
    yield (head + first).rstrip()
    yield from (" " * len(head) + line for line in rest)


def _wrapped(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from (" " * indent + line for line in wrap(text, width - indent))
