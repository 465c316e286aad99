"""The charts of one run, and of several runs by rate or concurrency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import numpy as np

from twofold.bench.draw.chart import Axis, Chart, Dots, Guide, Line, Mark, Point, Span, Spans, StepLine, nice_step
from twofold.bench.draw.form import duration, number, share
from twofold.bench.metrics.distribution import Floats
from twofold.bench.report import figures
from twofold.bench.report.document import Document, Request, Run, moments_of
from twofold.bench.report.figures import Measure
from twofold.core.units import count

MAX_ROWS: Final = 150
"""Maximum number of requests in a timeline."""

_CURVE_POINTS: Final = 400
_MAX_DOTS: Final = 1500
_BINS: Final = 80
_SPREAD: Final = 8.0
_FAR: Final = 2.0
"""An objective beyond this multiple of the slowest request is not shown, since it would compress the curve."""
_PERCENTILES: Final = (("P50", "p50"), ("P90", "p90"), ("P99", "p99"))

_NO_WAIT_S: Final = 1e-3
_BLUE, _ORANGE, _GREEN, _PINK, _OLIVE, _, _GREY = range(7)

_SHARE: Final = Axis("share of requests", form=share, low=0.0, high=1.0, ticks=5)
_TIME: Final = Axis("time since start", form=duration, low=0.0, tight=True)


def charts_of(run: Run) -> Iterator[Chart]:
    """The charts that the run has data for."""
    gaps = [np.frombuffer(each.gaps_us, np.int64) for each in _measured(run) if each.gaps_us]
    gaps_s = np.concatenate([np.empty(0), *gaps]) * 1e-6
    made = (
        _distribution(
            run,
            "Time to first token",
            "ttft",
            ("from due time", _values(run, "ttft_s"), _BLUE),
            ("from send", _values(run, "ttft_sent_s"), _ORANGE),
        ),
        _distribution(run, "Time per output token", "tpot", ("", _values(run, "tpot_s"), _GREEN)),
        _distribution(run, "Inter-token latency: gaps between chunks", "itl", ("", gaps_s, _PINK)),
        over_time(run),
        throughput(run),
        open_requests(run),
        by_prompt(run),
    )
    yield from (chart for chart in made if chart is not None)


def over_time(run: Run) -> Chart | None:
    """TTFT and schedule delay by due time."""
    rows = _thinned([each for each in _measured(run) if each.ttft_s is not None])
    if not rows:
        return None
    firsts = [(each.due_s, each.ttft_s or 0.0) for each in rows]
    titles = [f"request {each.index}: {duration(each.ttft_s)}" for each in rows]
    late = [(each.due_s, each.started_s - each.due_s) for each in rows if each.started_s is not None]
    delays = [(due, delay) for due, delay in late if delay > _NO_WAIT_S]
    marks: list[Mark] = [
        Dots(firsts, "TTFT", _BLUE, titles, 2.2),
        Dots(delays, f"schedule delay above {duration(_NO_WAIT_S)}", _ORANGE, radius=2.2),
    ]
    top = max(first for _, first in firsts)
    ends = [(each.due_s, top) for each in _measured(run) if each.outcome != "ok" and each.ttft_s is None]
    if ends:
        marks.append(Dots(ends, "no output (at the top)", _GREY, radius=3))
    # Delays of milliseconds would lie on the axis of a linear scale.
    y = Axis("latency", "log", duration) if delays else Axis("latency", form=duration, low=0.0)
    return Chart("Latency over the run", tuple(marks), _TIME, y)


def throughput(run: Run) -> Chart | None:
    """Tokens by arrival time; a request without chunks counts at its end."""
    moments, tokens = _arrivals(run.requests)
    if not len(moments):
        return None
    width = nice_step(max(float(moments.max()), 1e-3) / _BINS)
    sums = np.bincount((moments / width).astype(np.int64), weights=tokens)
    points = [(index * width, float(total) / width) for index, total in enumerate(sums)]
    points.append((len(sums) * width, 0.0))
    note = f"In steps of {duration(width)}."
    return Chart("Output", (StepLine(points, "", _GREEN),), _TIME, Axis("tokens/s", low=0.0), note)


def open_requests(run: Run) -> Chart | None:
    """Requests open at the server, and waiting in the client."""
    end_s = _end_of(run)
    sent = [(each.started_s, _end(each, end_s)) for each in run.requests if each.started_s is not None]
    delays = [(each.due_s, each.started_s) for each in run.requests if each.started_s is not None]
    waiting = [(due, start) for due, start in delays if start > due + _NO_WAIT_S]
    if not sent:
        return None
    marks = [StepLine(_level(sent), "at the server", _BLUE)]
    if waiting:
        marks.append(StepLine(_level(waiting), "waiting in the client", _ORANGE))
    return Chart("Open requests", tuple(marks), _TIME, Axis("requests", low=0.0))


def by_prompt(run: Run) -> Chart | None:
    """TTFT by prompt length; None with fewer than three lengths."""
    rows = _thinned([each for each in _measured(run) if each.ttft_sent_s is not None])
    points = [(float(_prompt_tokens(each)), each.ttft_sent_s or 0.0) for each in rows]
    if len({x for x, _ in points}) < 3:
        return None
    x, y = Axis("prompt tokens", low=0.0, tight=True), Axis("TTFT", form=duration, low=0.0)
    return Chart("TTFT from send by prompt length", (Dots(points, "", _BLUE, radius=2.2),), x, y)


def timeline(run: Run) -> Chart | None:
    """A row for each of the first requests, from its due time."""
    measured = _measured(run)
    rows = measured[:MAX_ROWS]
    if not rows:
        return None
    end_s = _end_of(run)
    parts = [list(_phases(row, each, end_s)) for row, each in enumerate(rows)]
    names = (
        ("in the client", _ORANGE),
        ("queue (estimate)", _GREY),
        ("prefill", _PINK),
        ("queue and prefill", _GREEN),
        ("decode", _BLUE),
        ("no output", _OLIVE),
    )
    spans = {name: [span for row in parts for phase, span in row if phase == name] for name, _ in names}
    marks: list[Mark] = [Spans(spans[name], name, colour) for name, colour in names if spans[name]]
    ends = [(_end(each, end_s), row + 0.5) for row, each in enumerate(rows) if each.outcome != "ok"]
    titles = [f"request {each.index}: {each.outcome}" for each in rows if each.outcome != "ok"]
    if ends:
        marks.append(Dots(ends, "failed or unfinished", _OLIVE, titles, 3))
    note = f"The first {len(rows)} of {len(measured):,} requests." if len(measured) > len(rows) else ""
    return Chart("Requests", tuple(marks), _TIME, Axis("request", downwards=True, low=0, high=len(rows)), note)


def curves_of(document: Document) -> Iterator[Chart]:
    """Charts of several runs: latency and throughput by rate or concurrency, and throughput by TPOT."""
    runs, search = document.runs, document.search
    if len(runs) < 2:
        return
    found_rate = None if search is None else figures.number_at(search, "rate")
    made = (
        *(latency_by_step(runs, each, found_rate, joined=search is None) for each in (figures.TTFT, figures.TPOT)),
        throughput_by_step(runs, joined=search is None),
        pareto(runs),
    )
    yield from (chart for chart in made if chart is not None)


def latency_by_step(runs: Sequence[Run], measure: Measure, found_rate: float | None, *, joined: bool) -> Chart | None:
    """Percentiles by requested rate or concurrency; ``found_rate`` is the result of a search."""
    step = figures.step_of(runs)
    found = [(step.of(run), figures.distribution(run, measure)) for run in runs]
    lines: list[Line | Dots] = []
    for colour, (title, name) in enumerate(_PERCENTILES):
        points = _points((across, each.at(name)) for across, each in found)
        dots = Dots(points, title, colour, radius=4.5 - colour)  # overlapping dots are all visible
        # a search tries close rates several times: a line through them would zigzag
        lines += [dots] if not joined else [Line(points, title, colour), dots]
    if not any(line.points for line in lines):
        return None
    limit = figures.objectives(runs[0]).get(measure.name.lower())
    guides = [] if limit is None else [Guide("y", limit, f"objective {duration(limit)}")]
    if found_rate is not None and step is figures.RATE:
        guides.append(Guide("x", found_rate, f"sustained: {number(found_rate)}/s"))
    infinite = any(each.p99 == float("inf") for _, each in found)
    note = "A percentile that failures make infinite is not shown." if infinite else ""
    x, y = Axis(step.axis, low=0.0, tight=True), Axis(measure.name, form=duration, low=0.0)
    return Chart(f"{measure.name} against {step.title}", (*lines, *guides), x, y, note)


def throughput_by_step(runs: Sequence[Run], *, joined: bool) -> Chart | None:
    """Achieved against requested rates: they diverge where the server is saturated."""
    step = figures.step_of(runs)
    points = _points((step.of(run), figures.achieved(run, "requests_per_s")) for run in runs)
    if not points:
        return None
    marks: list[Mark] = [Dots(points, "achieved", _BLUE)]
    if joined:
        marks.insert(0, Line(points, "achieved", _BLUE))
    if step is figures.RATE:
        end = points[-1][0]
        marks.insert(0, Line([(0.0, 0.0), (end, end)], "requested", _ORANGE, dashed=True))
    x = Axis(step.axis, low=0.0, tight=True)
    return Chart(f"Throughput against {step.title}", tuple(marks), x, Axis("requests/s", low=0.0))


def pareto(runs: Sequence[Run]) -> Chart | None:
    """Throughput by TPOT: a dot for each run, and a line through the Pareto-optimal runs."""
    step = figures.step_of(runs)
    found = [
        (figures.distribution(run, figures.TPOT).p50, figures.achieved(run, "output_tokens_per_s")) for run in runs
    ]
    rows = [(x, y, step.at(run)) for (x, y), run in zip(found, runs, strict=True) if x is not None and y is not None]
    if len(rows) < 2:
        return None
    points = [(tpot, tokens) for tpot, tokens, _ in rows]
    dots = Dots(points, "runs", _BLUE, [title for _, _, title in rows], 4.5)
    x, y = Axis("TPOT P50", form=duration, low=0.0), Axis("output tokens/s", low=0.0)
    return Chart("Throughput against TPOT", (Line(front(points), "Pareto front", _ORANGE), dots), x, y)


def front(points: Sequence[Point]) -> list[Point]:
    """The points for which no other point has a lower x and a higher y, ascending in x."""
    found: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found


def _points(pairs: Iterable[tuple[float | None, float | None]]) -> list[Point]:
    """Pairs of two values, ascending."""
    return sorted((x, y) for x, y in pairs if x is not None and y is not None)


def cdf(values: Floats) -> list[Point]:
    """The distribution function of values in any order. Infinite values have no point, but count in the shares.

    Of many values some hundred points are selected, evenly by rank and more densely at the slow end.
    """
    n = len(values)
    ascending = np.sort(values[np.isfinite(values)])
    if not len(ascending):
        return []
    even = np.linspace(0, len(ascending) - 1, _CURVE_POINTS)
    tail = len(ascending) - np.geomspace(1, len(ascending), _CURVE_POINTS)
    ranks = np.unique(np.concatenate((even, tail)).astype(np.int64))
    points = [(float(ascending[rank]), (int(rank) + 1) / n) for rank in ranks]
    return [(points[0][0], 0.0), *points]


def _distribution(run: Run, title: str, name: str, *series: tuple[str, Floats, int]) -> Chart | None:
    """The distribution functions of ``series`` (label, values, colour); all but the first are dashed."""
    axis = _time_axis([values for _, values, _ in series])
    floor = axis.low or 0.0  # values below the axis are shown at its left end
    marks = [
        StepLine([(max(x, floor), y) for x, y in cdf(values)], label, colour, dashed=bool(place))
        for place, (label, values, colour) in enumerate(series)
    ]
    if not any(mark.points for mark in marks):
        return None
    limit = figures.objectives(run).get(name)
    slowest = max(x for mark in marks for x, _ in mark.points)
    near = limit is not None and limit <= _FAR * slowest
    guides = [Guide("x", limit, f"objective {duration(limit)}")] if limit is not None and near else []
    failed = int(max(np.isinf(values).sum() for _, values, _ in series))
    note = f"{count(failed, 'failure')} counted as infinitely slow: the curve ends below 100%." if failed else ""
    return Chart(title, (*marks, *guides), axis, _SHARE, note)


def _time_axis(values: Sequence[Floats]) -> Axis:
    """An axis for durations, logarithmic if the slowest value is far from the median."""
    finite = np.concatenate([each[np.isfinite(each)] for each in values])
    middle = float(np.median(finite)) if len(finite) else 0.0
    kind: Literal["log", "linear"] = "log" if middle > 0 and float(finite.max()) > _SPREAD * middle else "linear"
    low = float(np.quantile(finite, 0.001)) if kind == "log" else 0.0
    return Axis("time", kind, duration, low=max(low, middle / 1000) if kind == "log" else 0.0)


def _values(run: Run, name: str) -> Floats:
    return np.array([value for value in run.figures(name) if value is not None], np.float64)


def _measured(run: Run) -> list[Request]:
    return [each for each in run.requests if each.measured]


def _thinned(rows: Sequence[Request]) -> list[Request]:
    """All rows, or if they are many the slowest ones and a regular sample of the others."""
    if len(rows) <= _MAX_DOTS:
        return list(rows)
    slow = sorted(rows, key=lambda each: -(each.ttft_s or 0.0))[: _MAX_DOTS // 5]
    indexes = {each.index for each in (*slow, *rows[:: len(rows) // _MAX_DOTS + 1])}
    return [each for each in rows if each.index in indexes]


def _arrivals(requests: Iterable[Request]) -> tuple[Floats, Floats]:
    """Arrival times of output, and the number of tokens at each."""
    moments: list[Floats] = [np.empty(0)]
    tokens: list[Floats] = [np.empty(0)]
    for each in requests:
        arrived = np.asarray(moments_of(each)) if each.gaps_us is not None else np.array([each.last_s or -1.0])
        if each.first_s is None or not len(arrived):
            continue
        counts = each.chunk_tokens if each.gaps_us is not None else None
        even = (each.output_tokens or each.chunks) / len(arrived)
        moments.append(arrived)
        tokens.append(
            np.full(len(arrived), even) if counts is None else np.broadcast_to(np.asarray(counts, float), len(arrived))
        )
    return np.concatenate(moments), np.concatenate(tokens)


def _level(spans: Sequence[tuple[float, float]]) -> list[Point]:
    """The number of open spans (start, end) after each change, as steps over time."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    level, points = 0, [(0.0, 0.0)]
    for moment, change in changes:
        level += change
        points.append((moment, float(level)))
    return points


def _phases(row: int, each: Request, end_s: float) -> Iterator[tuple[str, Span]]:
    """The phases of a request and their spans; ``end_s`` is the end of the run."""
    if each.started_s is None:
        return
    yield "in the client", Span(row, each.due_s, each.started_s, f"request {each.index} waited at the client")
    if each.first_s is None:  # it is unknown whether its prompt was computed
        yield "no output", Span(row, each.started_s, _end(each, end_s), f"request {each.index}: no output")
        return
    prompt = f"prefill of {_prompt_tokens(each)} tokens"
    if each.queue_s is None:
        yield "queue and prefill", Span(row, each.started_s, each.first_s, f"request {each.index}: queue, {prompt}")
    else:
        turn = min(each.first_s, each.started_s + each.queue_s)
        yield "queue (estimate)", Span(row, each.started_s, turn, f"request {each.index} queued, as estimated")
        yield "prefill", Span(row, turn, each.first_s, f"request {each.index}: {prompt}")
    if each.last_s is not None:
        words = f"request {each.index}: {each.output_tokens or each.chunks} tokens"
        yield "decode", Span(row, each.first_s, each.last_s, words)


def _prompt_tokens(each: Request) -> int:
    return each.asked_input_tokens if each.prompt_tokens is None else each.prompt_tokens


def _end(each: Request, end_s: float) -> float:
    """The end of a request, or the end of the run ``end_s`` if the request was still open."""
    if each.outcome == "unfinished" and each.started_s is not None:
        return end_s
    return max(_moments(each), default=each.due_s)


def _end_of(run: Run) -> float:
    """The latest time of any request."""
    return max((moment for each in run.requests for moment in _moments(each)), default=run.duration_s)


def _moments(each: Request) -> list[float]:
    moments = (each.ended_s, each.last_s, each.sent_s, each.started_s)
    return [moment for moment in moments if moment is not None]
