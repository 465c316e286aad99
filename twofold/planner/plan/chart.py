"""The frontier of TPOT against cost as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from twofold.bench.draw import Axis, Chart, Dots, Guide, Label, Mark, StepLine, duration, number
from twofold.planner.plan.search import PlanStudy, SearchPoint
from twofold.planner.plan.slo import Slo


def frontier_chart(study: PlanStudy, slo: Slo, *, priced: bool = True) -> Chart:
    """Nothing is below and left of the line. ``priced``: cost is dollars an hour, else devices."""
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
    """The points that meet the SLO, each with the parts of its name that not all of them share."""
    met = [point for point in study.frontier if point.met]
    parts = [point.name.split(" · ") for point in met]
    shared = set.intersection(*map(set, parts)) if len(parts) > 1 else set()
    for point, words in zip(met, parts, strict=True):
        yield point, " · ".join(word for word in words if word not in shared)
