"""The roofline chart (Williams et al. 2009): FLOPs a second that a phase can reach, and reaches, by FLOPs a byte.

It has a roof for each arithmetic of the model's products, a dot for each phase, and a dashed line of decode steps by
batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twofold.api.body import ReplyObject
from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Label, Line, Mark
from twofold.bench.draw.form import number
from twofold.core.values import Arithmetic
from twofold.planner.count.step import SequenceRows, Work, step
from twofold.planner.explain.scenario import PhaseName, UniformScenario, Waterfall
from twofold.planner.explain.words import scaled

MIN_SHARE: Final = 0.02
"""Share of a phase's FLOPs below which an arithmetic has no roof."""


class RooflineDot(ReplyObject):
    """A phase in the chart, for one device: FLOPs a byte (``intensity``) and FLOPs a second (``speed``)."""

    name: str
    intensity: float
    speed: float


def roofline_points(scenario: UniformScenario, fall: Waterfall) -> tuple[RooflineDot, ...]:
    """The phases in the chart, as measured or else as predicted."""
    found = []
    works: dict[PhaseName, Work] = {"prefill": prefill_work(scenario), "decode": decode_work(scenario)}
    for name, work in works.items():
        phase = fall.named(name)
        flops, moved = float(work.flops), float(work.memory_bytes)
        if phase.flops and phase.nbytes:
            flops, moved = phase.flops, phase.nbytes
        elif name == "decode":
            flops, moved = flops * scenario.further, moved * scenario.further
        if flops and moved and phase.seconds > 0:
            found.append(RooflineDot(name, flops / moved, flops / phase.seconds))
    return tuple(found)


def prefill_work(scenario: UniformScenario) -> Work:
    """The work of all steps of one prompt on one device."""
    works = (step(scenario.shape, [rows], setup=scenario.setup) for rows in scenario.case.chunks())
    return sum(works, Work(()))


def decode_work(scenario: UniformScenario, batch: int | None = None) -> Work:
    """The work of one decode step on one device, halfway through the completions."""
    running = batch or scenario.predictor.batch(scenario.case)
    return step(scenario.shape, [SequenceRows(1, scenario.case.halfway - 1)] * running, setup=scenario.setup)


def roofline(scenario: UniformScenario, fall: Waterfall) -> Chart:
    """The chart; both axes are logarithmic."""
    machine = scenario.predictor.machine
    dots = roofline_points(scenario, fall)
    path = tuple(_decode_path(scenario))
    roofs = _arithmetics(scenario)
    low = min([0.5, *(each.intensity / 2 for each in dots)])
    high = max([4 * machine.ridge(each) for each in roofs] + [2 * each.intensity for each in dots])
    marks: list[Mark] = []
    for index, each in enumerate(roofs):
        peak, ridge = machine.peak(each), machine.ridge(each)
        points = ((low, low * machine.bandwidth), (ridge, peak), (high, peak))
        marks.append(Line(points, f"{machine.computes_in(each)} {scaled(peak)}FLOP/s", index))
        marks.append(Guide("x", ridge, f"ridge {number(ridge)}"))
    series = len(roofs)
    marks.append(Label(4 * low, 4 * low * machine.bandwidth, f"{scaled(machine.bandwidth)}B/s"))
    marks.append(Line(path, "decode by batch size", series, dashed=True))
    marks.append(Dots(path, "decode by batch size", series, [f"batch {2**n}" for n in range(len(path))], 2))
    for index, place in enumerate(dots, series + 1):
        marks.append(Label(place.intensity, place.speed, place.name))
        title = f"{place.name}: {number(place.intensity)} FLOP/byte, {scaled(place.speed)}FLOP/s"
        marks.append(Dots(((place.intensity, place.speed),), place.name, index, (title,), radius=6))
    marks += [Label(*point, f"batch {2**n}" if n in (0, len(path) - 1) else f"{2**n}") for n, point in enumerate(path)]
    return Chart(
        f"Roofline of {machine.name}",
        tuple(marks),
        Axis("arithmetic intensity: FLOP per byte of weights and KV", "log", low=low, high=high, tight=True),
        Axis("FLOP/s per device", "log"),
        note=_words(scenario, dots),
    )


def _words(scenario: UniformScenario, dots: tuple[RooflineDot, ...]) -> str:
    machine = scenario.predictor.machine
    reached = []
    for place in dots:
        roof = min(place.intensity * machine.bandwidth, machine.peak(_arithmetics(scenario)[0]))
        reached.append(f"{place.name} reaches {place.speed / roof:.0%} of its roof")
    return "; ".join(reached)


def _arithmetics(scenario: UniformScenario) -> tuple[Arithmetic, ...]:
    """The arithmetics in which the machine computes the products, the most frequent first."""
    machine = scenario.predictor.machine
    sums: dict[Arithmetic, float] = {}
    for work in (prefill_work(scenario), decode_work(scenario, 1)):
        for kind, flops in work.flops_by_arithmetic().items():
            real = machine.computes_in(kind)
            sums[real] = sums.get(real, 0.0) + flops / work.flops
    ordered = sorted(sums, key=lambda kind: -sums[kind])
    return tuple(kind for kind in ordered if sums[kind] >= MIN_SHARE)


def _decode_path(scenario: UniformScenario) -> Iterator[tuple[float, float]]:
    """Decode steps of 1, 2, 4 … sequences, as many as fit in memory."""
    batch, limit = 1, min(max(1, scenario.sequences), 4096)
    while batch <= limit:
        work = decode_work(scenario, batch)
        seconds = scenario.predictor.steps.decode(batch, scenario.case.halfway).seconds(scenario.predictor.constants)
        yield work.intensity, work.flops / seconds
        batch *= 2
