"""The requests of a document at one load point as arrays, in order of their due times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from twofold.bench.metrics.distribution import Floats
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.report import figures
from twofold.bench.report.document import Request, Run

SLICES: Final = 48
"""Time slices of a run for rates."""

Point: TypeAlias = tuple[tuple[str, float], ...]
"""A load point: rate and concurrency, as far as the load has them."""

Measure: TypeAlias = Literal["ttft_s", "ttft_sent_s", "tpot_s", "e2e_s"]
MEASURES: Final[tuple[Measure, ...]] = ("ttft_s", "ttft_sent_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Series:
    """Values, and the index of the request of each."""

    values: Floats
    owner: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """All runs of a document at one load point.

    measures  values of requests; failures are infinite
    gaps      between chunks; None without them in the document
    answered  1.0 for each request with a complete response, else 0.0
    met       1.0 for each request that met all objectives, else 0.0, if known; None without objectives
    flows     ``requests_per_s`` and ``output_tokens_per_s`` in each time slice
    """

    n: int
    measures: Mapping[Measure, Series]
    gaps: Series | None
    answered: Series
    met: Series | None
    flows: Mapping[str, Series]


def points(runs: Iterable[Run]) -> dict[Point, list[Run]]:
    """The runs of each load point, in their order."""
    found: dict[Point, list[Run]] = {}
    for run in runs:
        found.setdefault(point_of(run.load), []).append(run)
    return found


def point_of(load: Mapping[str, Any]) -> Point:
    """Rate and concurrency in the description of a load."""
    arrivals = load.get("arrivals")
    found = {**(arrivals if isinstance(arrivals, Mapping) else {}), **load}
    numbers = ((name, found.get(name)) for name in ("rate", "concurrency"))
    return tuple((name, float(value)) for name, value in numbers if isinstance(value, int | float))


def objectives_of(runs: Iterable[Run]) -> Objectives | None:
    """The first objectives in summaries; None without any."""
    known = Objectives.__slots__
    found = next((limits for run in runs if (limits := figures.objectives(run))), None)
    return None if found is None else Objectives(**{name: limit for name, limit in found.items() if name in known})


def side_of(runs: Sequence[Run], objectives: Objectives | None = None) -> Side:
    """The side of runs with at least one measured request."""
    parts = [[request for request in run.requests if request.measured] for run in runs]
    requests = [request for part in parts for request in part]
    flows = [_flows(run, part) for run, part in zip(runs, parts, strict=True)]
    met = [_met(request, run, objectives) for run, part in zip(runs, parts, strict=True) for request in part]
    return Side(
        n=len(requests),
        measures={name: _series([value for run in runs for value in run.figures(name)]) for name in MEASURES},
        gaps=_gaps(requests),
        answered=_series([float(request.outcome == "ok") for request in requests]),
        met=None if objectives is None else _series(met),
        flows={name: _series(np.concatenate([flow[name] for flow in flows]).tolist()) for name in flows[0]},
    )


def _met(request: Request, run: Run, objectives: Objectives | None) -> float | None:
    """As ``goodput.misses``; None if the run was stopped before its end, or without its gaps."""
    if objectives is None or (run.interrupted and request.outcome == "unfinished"):
        return None
    if request.outcome != "ok" or not request.chunks:
        return 0.0
    if objectives.itl is not None and request.gaps_us is None:
        return None
    longest = max(request.gaps_us or (), default=0) * 1e-6
    values = {"ttft": request.ttft_s, "tpot": request.tpot_s, "itl": longest, "e2e": request.e2e_s}
    return float(all((values[name] or 0.0) <= limit for name, limit in objectives.limits()))


def _series(values: Sequence[float | None]) -> Series:
    owner = np.array([at for at, value in enumerate(values) if value is not None], np.int64)
    return Series(np.array([value for value in values if value is not None], np.float64), owner)


def _gaps(requests: Sequence[Request]) -> Series | None:
    known = [(at, request.gaps_us) for at, request in enumerate(requests) if request.gaps_us is not None]
    if not known:
        return None
    values = np.concatenate([np.frombuffer(gaps, np.int64) for _, gaps in known]) * 1e-6
    owner = np.repeat([at for at, _ in known], [len(gaps) for _, gaps in known])
    return Series(values, owner.astype(np.int64))


def _flows(run: Run, measured: Sequence[Request]) -> dict[str, Floats]:
    """Ended responses in each time slice, and their tokens, spread evenly from the first to the last one.

    The slices are of the window of steady rates; if it is empty, from the first due time to the last end.
    """
    start, end = (figures.figure(run.summary, "measured", name) for name in ("from_s", "until_s"))
    if start is None or end is None or end <= start:
        start = min(request.due_s for request in measured)
        end = max(request.ended_s or request.due_s for request in measured)
    edges = np.linspace(start, end, SLICES + 1)
    slice_s = max(edges[1] - edges[0], 1e-9)
    done = [request for request in run.requests if request.outcome == "ok"]
    ended = np.sort([request.ended_s for request in done if request.ended_s is not None])
    requests = np.diff(np.searchsorted(ended, edges).astype(np.float64))
    rows = [
        (request.first_s, request.last_s, float(request.output_tokens or request.chunks))
        for request in done
        if request.first_s is not None and request.last_s is not None
    ]
    first, last, tokens = np.array(rows, np.float64).reshape(-1, 3).T
    length = np.maximum(last - first, 1e-9)
    received = [float((np.clip((edge - first) / length, 0.0, 1.0) * tokens).sum()) for edge in edges]
    return {"requests_per_s": requests / slice_s, "output_tokens_per_s": np.diff(received) / slice_s}
