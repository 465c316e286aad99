"""The charts of several runs: what a rate costs, or, of closed loops, another client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from twofold.bench.draw import Axis, Chart, Dots, Guide, Line, Mark, duration, number
from twofold.bench.draw.marks import Point
from twofold.bench.report import figures
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import Measure, SweepParameter

_PERCENTILES: Final = (("P50", "p50"), ("P90", "p90"), ("P99", "p99"))
_BLUE, _ORANGE = range(2)


def curves_of(document: Document) -> Iterator[Chart]:
    """Latency and throughput against the rate, and throughput against TPOT; nothing of a single run."""
    runs = document.runs
    if len(runs) < 2:
        return
    found_rate = None if document.search is None else figures.figure(document.search, "rate")
    for measure, name in ((figures.TTFT, "ttft"), (figures.TPOT, "tpot")):
        chart = latency(runs, measure, name, found_rate, joined=document.search is None)
        if chart is not None:
            yield chart
    for found in (throughput(runs, joined=document.search is None), pareto(runs)):
        if found is not None:
            yield found


def latency(
    runs: Sequence[Run], measure: Measure, objective: str, found_rate: float | None = None, *, joined: bool = True
) -> Chart | None:
    """Percentiles by the rate that was asked; ``found_rate`` is the one that a search found to be sustained."""
    step = figures.step_of(runs)
    lines: list[Line | Dots] = []
    for colour, (title, name) in enumerate(_PERCENTILES):
        points = _points(runs, step, measure, name)
        dots = Dots(points, title, colour, radius=4.5 - colour)  # those that lie on each other are all seen
        # a search tries near rates several times: a line through them would be a zigzag
        lines += [dots] if not joined else [Line(points, title, colour), dots]
    if not any(line.points for line in lines):
        return None
    limit = figures.objectives(runs[0]).get(objective)
    guides = [] if limit is None else [Guide("y", limit, f"objective {duration(limit)}")]
    if found_rate is not None and step is figures.RATE:
        guides.append(Guide("x", found_rate, f"sustained: {number(found_rate)}/s"))
    note = "A percentile that failures make infinite is not shown." if _endless(runs, measure) else ""
    return Chart(
        f"{measure.name} against {step.word}",
        (*lines, *guides),
        _axis(step),
        Axis(measure.name, form=duration, low=0.0),
        note,
    )


def throughput(runs: Sequence[Run], *, joined: bool = True) -> Chart | None:
    """Where achieved leaves asked, the server is full."""
    step = figures.step_of(runs)
    pairs = [(step.of(run), figures.achieved(run, "requests_per_s")) for run in runs]
    points = sorted((across, got) for across, got in pairs if across is not None and got is not None)
    if not points:
        return None
    marks: list[Mark] = [Dots(points, "achieved", _BLUE)]
    if joined:
        marks.insert(0, Line(points, "achieved", _BLUE))
    if step is figures.RATE:
        end = points[-1][0]
        marks.insert(0, Line([(0.0, 0.0), (end, end)], "requested", _ORANGE, dashed=True))
    return Chart(f"Throughput against {step.word}", tuple(marks), _axis(step), Axis("requests/s", low=0.0))


def pareto(runs: Sequence[Run]) -> Chart | None:
    """Each run is a dot; the line joins those that no other run beats in both."""
    found = [
        (
            figures.of(run, figures.TPOT).p50,
            figures.figure(run.summary, "rates", "achieved", "output_tokens_per_s"),
            run,
        )
        for run in runs
    ]
    rows = [(tpot, tokens, run) for tpot, tokens, run in found if tpot is not None and tokens is not None]
    if len(rows) < 2:
        return None
    step = figures.step_of(runs)
    titles = [step.at(run) for _, _, run in rows]
    points = [(tpot, tokens) for tpot, tokens, _ in rows]
    marks = (Line(front(points), "Pareto front", _ORANGE), Dots(points, "runs", _BLUE, titles, 4.5))
    x = Axis("TPOT P50", form=duration, low=0.0)
    return Chart("Throughput against TPOT", marks, x, Axis("output tokens/s", low=0.0))


def front(points: Sequence[Point]) -> list[Point]:
    """Of points, those of which no other has a lower x and a higher y; ascending."""
    kept: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept


def _points(runs: Sequence[Run], step: SweepParameter, measure: Measure, name: str) -> list[Point]:
    pairs = [(step.of(run), figures.of(run, measure).at(name)) for run in runs]
    return sorted((across, value) for across, value in pairs if across is not None and value is not None)


def _endless(runs: Sequence[Run], measure: Measure) -> bool:
    return any(figures.of(run, measure).p99 == float("inf") for run in runs)


def _axis(step: SweepParameter) -> Axis:
    return Axis(step.axis, low=0.0, tight=True)
