"""Plans, and whether a model fits, as lines for a terminal. Bytes are of each device, GB are 10⁹ bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Mark, StepLine
from twofold.bench.draw.form import duration, number, share
from twofold.bench.draw.terminal import plot
from twofold.core.units import count
from twofold.planner.plan.commands import fleet_commands, obstacle
from twofold.planner.plan.fitting import FitResult
from twofold.planner.plan.offers import offers
from twofold.planner.plan.plan import CapacityPlan, Estimate
from twofold.planner.plan.search import PlanStudy, SearchPoint, measured_errors
from twofold.planner.plan.traffic import PlanSlo, Traffic
from twofold.planner.predict.constants import error_words

COLUMNS = (
    "$/h",
    "$/M out",
    "devices",
    "replicas",
    "replica",
    "weights",
    "KV",
    "step",
    "TTFT",
    "TPOT",
    "batch",
    "",
)
WAYS = ("TP", "weights", "KV", "weights/device", "free for KV", "sequences", "max context")


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """Plans for traffic within objectives, at least one; the ``shown`` cheapest are described."""

    study: PlanStudy
    traffic: Traffic
    slo: PlanSlo
    shown: int

    def chart(self) -> Chart:
        """The frontier."""
        return frontier_chart(self.study, self.slo, priced=self.study.plans[0].cost is not None)

    def lines(self) -> Iterator[str]:
        """The cheapest plans in a table, the reasons for the first one, and the frontier."""
        plans, traffic, kinds = self.study.plans, self.traffic, self.traffic.kinds
        yield (
            f"{traffic.rate:g} requests/s, on average {traffic.mean(kind.prompt for kind in kinds):,.0f} prompt tokens "
            f"({share(traffic.cached_share)} cached) and {traffic.mean(kind.output for kind in kinds):,.0f} output "
            "tokens"
        )
        yield f"SLO: {self.slo}"
        yield (
            f"{count(self.study.tried, 'configuration')} tried; {len(plans):,} meet the SLO, counting those that "
            "differ only in step size once. Cheapest first, then higher quality, then faster:"
        )
        yield ""
        several = len({plan.configuration.shape.name for plan in plans}) > 1
        yield from _table(COLUMNS, [_row(plan, several) for plan in plans[: self.shown]])
        yield ""
        best = plans[0]
        yield f"About the first ({best.configuration.name}):"
        yield from (f"  {reason}" for reason in best.reasons)
        yield from (f"  {line}" for line in _split_lines(self.study))
        yield from (f"  {line}" for line in _serving_lines(best))
        yield "Levers that need your decision, for the mean request:"
        yield from (f"  {offer.words}" for offer in offers(best, traffic))
        yield error_words(measured_errors(best.configuration))
        if best.source == "simulation":
            met = f"the first met the SLO in {best.attained or 0.0:.1%} of requests"
            yield f"~ marks estimates from means and variances. The others were simulated: {met}."
        else:
            yield "~ marks estimates from means and variances, without a simulation."
        yield ""
        yield plot(self.chart())


def frontier_chart(study: PlanStudy, slo: PlanSlo, *, priced: bool = True) -> Chart:
    """TPOT against cost of the Pareto front. ``priced``: cost is dollars an hour, else devices."""
    points = [(point.cost, point.tpot) for point in study.frontier]
    titles = [f"{point.name}, {point.count}" for point in study.frontier]
    marks: list[Mark] = [
        StepLine(points, "Pareto front: nothing is cheaper and faster"),
        Dots(
            [place for place, point in zip(points, study.frontier, strict=True) if point.met],
            "meets the SLO",
            series=1,
            titles=[title for title, point in zip(titles, study.frontier, strict=True) if point.met],
        ),
    ]
    marks += [Label(point.cost, point.tpot, name) for point, name in _names(study)]
    if slo.tpot is not None:
        marks.append(Guide("y", slo.tpot, f"TPOT limit {duration(slo.tpot)}"))
    return Chart(
        "Mean TPOT against cost",
        tuple(marks),
        x=Axis("dollars per hour" if priced else "devices", "log", number),
        y=Axis("mean TPOT", "log", duration),
    )


def _names(study: PlanStudy) -> Iterator[tuple[SearchPoint, str]]:
    """Each point that meets the SLO, with the parts of its name that differ from the other points."""
    met = [point for point in study.frontier if point.met]
    parts = [point.name.split(" · ") for point in met]
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    labels = [" · ".join(word for word in words if word not in shared) for words in parts]
    for point, label in zip(met, labels, strict=True):
        yield point, label if labels.count(label) == 1 else f"{label} · {point.count}"


def _split_lines(study: PlanStudy) -> Iterator[str]:
    """What it brings that some replicas only prefill and others only decode."""
    split, both = (
        next((plan for plan in study.plans if plan.configuration.split == split), None) for split in (True, False)
    )
    if split is not None and both is not None:
        gain = (both.cost or both.devices) / (split.cost or split.devices)
        words = f"×{gain:.2f} of requests per cost" if gain != 1 else "no difference in cost"
        why = ""
        if gain < 1:
            why = f": prefill is {share(split.prompt_share)} utilized, and idle replicas cannot help the other phase"
        yield (
            f"Prefill and decode apart: {words} ({count(split.devices, 'device')} instead of {both.devices}; "
            f"TPOT {duration(split.tpot.at)} instead of {duration(both.tpot.at)}){why}."
        )


def _serving_lines(plan: CapacityPlan) -> Iterator[str]:
    """The commands that serve a plan, or its settings for another engine."""
    why = obstacle(plan.configuration)
    if why is None:
        yield "Commands (MODEL: the name or file of the model):"
        yield from (f"  {command}" for command in fleet_commands(plan))
    else:
        yield f"Settings: --max-num-seqs {plan.batch_limit} --max-num-batched-tokens {plan.configuration.chunk}."
        yield f"Twofold cannot serve it: {why}."


def fit_lines(found: FitResult, others: Sequence[FitResult]) -> Iterator[str]:
    """The bytes of each part, whether they fit, and what fits in other ways."""
    asked, room = found.question, found.room
    yield (
        f"{asked.shape.name} on {asked.tp} × {asked.machine.name}: {found.weights} weights, {asked.kv.name} keys and "
        f"values, {asked.concurrency} × {asked.context:,} tokens"
    )
    each = " on each device" if asked.tp > 1 else ""
    yield f"memory{each}: {_gb(room.memory)}"
    lines = [(name, size) for name, size in room.lines() if name != "keys and values"]
    for name, size in (*lines, ("keys and values", found.needed)):
        yield f"  {name:<18}{_gb(size):>10}{_detail(found, name)}"
    total = sum(size for _, size in lines) + found.needed
    verdict = "fits" if found.fits else f"does not fit: {_gb(found.missing)} too large"
    yield f"  {'total':<18}{_gb(total):>10}  {verdict}"
    if asked.context > asked.shape.context_length:
        yield f"The model supports contexts of up to {asked.shape.context_length:,} tokens."
    yield ""
    most = max(asked.shape.context_length, asked.context)
    whole = bool(others) and all(other.longest == most for other in others)
    more = (
        f". Each way holds a context of {most:,}"
        if whole
        else f", and the longest context at concurrency {asked.concurrency}"
    )
    yield f"Sequences of {asked.context:,} tokens that fit{more}:"
    columns = WAYS[:-1] if whole else WAYS
    yield from _table(columns, [_way(other)[: len(columns)] for other in others])


def _detail(found: FitResult, name: str) -> str:
    asked = found.question
    if name == "keys and values":
        return f"  {asked.concurrency} × {_gb(found.needed // asked.concurrency)}"
    if name == "reserve":
        return f"  {share(1 - asked.share)} for libraries, CUDA graphs and fragmentation"
    if name == "activations":
        return f"  for a step of {asked.rows:,} tokens"
    return ""


def _way(found: FitResult) -> tuple[str, ...]:
    longest = f"{found.longest:,}" if found.longest else "–"
    return (
        str(found.question.tp),
        found.weights,
        found.question.kv.name,
        _gb(found.room.weights),
        _gb(max(0, found.room.kv)),
        f"{found.sequences:,}" if found.sequences else "–",
        longest,
    )


def _row(plan: CapacityPlan, named: bool) -> tuple[str, ...]:
    c = plan.configuration
    steps = "split" if c.split else f"{c.chunk} tokens"
    if c.speculation:
        steps += f", {count(c.speculation.drafts, 'draft')}"
    return (
        "–" if plan.cost is None else f"{plan.cost:,.2f}",
        "–" if plan.cost_per_million is None else f"{plan.cost_per_million:,.3f}",
        str(plan.devices),
        str(plan.count),
        f"{c.shape.name + ' on ' if named else ''}{c.tp}×{c.machine.name}",
        c.weights,
        c.setup.kv.name,
        steps,
        _time(plan.ttft, plan.source),
        _time(plan.tpot, plan.source),
        f"{plan.batch:.0f} (max {plan.batch_limit})" if plan.batch >= 0.5 else f"<1 (max {plan.batch_limit})",
        "sure" if plan.sure else "",
    )


def _time(found: Estimate, source: str) -> str:
    band = f" ±{float(found.error):.0%}" if found.error is not None else ""
    return f"{'~' if source == 'estimate' else ''}{duration(found.at)}{band}"


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Right-aligned columns as wide as their contents."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
