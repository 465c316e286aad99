"""One request of a bench: what a client saw, and what it can infer of the server.

queue     the client's own lateness, and what the bench thinks the request waited
prefill   the rest of its time to the first token
stalls    of each gap that is over 3 times the usual one, what exceeds the usual one
decode    the rest
batch     how many answers came at once, in the mean, while its own came
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import Final

from twofold.bench.draw.form import duration
from twofold.core.errors import ParameterError
from twofold.planner.explain.observed import Observed, Spent
from twofold.planner.explain.scenario import Goal
from twofold.planner.explain.sources.fields import SourceFields

LONG_GAP: Final = 3.0
UNTOLD: Final = "with its queue, which the bench could not tell apart"
MEASURES: Final[dict[Goal, str]] = {"ttft": "ttft_s", "tpot": "tpot_s"}


def read_bench(document: SourceFields, pick: str, goal: Goal) -> Observed:
    """The request with an index, or at a percentile (``p50``, ``p99``) of the figure that ``goal`` names."""
    runs = document.parts("runs")
    if not runs:
        raise _none(document.label)
    run = runs[-1]
    requests = run.parts("requests")
    chosen = (
        _by_share(requests, pick, MEASURES.get(goal, "e2e_s")) if pick.startswith("p") else _by_index(requests, pick)
    )
    target = document.inner("target")
    return _observed(chosen, requests, target.optional_text("model"), pick)


def _by_index(requests: Sequence[SourceFields], pick: str) -> SourceFields:
    if not pick.isdecimal():
        raise ParameterError(
            f"{pick!r:.60} is neither a request's index nor a percentile.", param="request", hint="Give 17, or p99."
        )
    found = next((each for each in requests if each.count("index") == int(pick)), None)
    if found is None:
        raise ParameterError(
            f"The last run has no request {pick}.",
            param="request",
            hint=f"It holds {len(requests)} requests, from 0 on.",
        )
    return found


def _by_share(requests: Sequence[SourceFields], pick: str, measure: str) -> SourceFields:
    """Nearest rank: the least figure that at least that share of the others does not exceed."""
    try:
        share = float(pick[1:]) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ParameterError(f"{pick!r:.60} is not a percentile.", param="request", hint="Give p50, p99 or an index.")
    known = sorted(
        (each for each in requests if measure in each and each.values.get("measured", True)),
        key=lambda each: each.number(measure),
    )
    if not known:
        raise _none("The last run")
    return known[ceil(share * len(known)) - 1]


def _none(label: str) -> ParameterError:
    return ParameterError(
        f"{label} has no answered request.",
        param="source",
        hint="Benchmark again with --output FILE.json.",
    )


def _observed(request: SourceFields, all_requests: Sequence[SourceFields], model: str | None, pick: str) -> Observed:
    for name in ("first_s", "last_s", "prompt_tokens", "output_tokens"):
        if name not in request:
            raise ParameterError(
                f"Request {request.count('index')} has no {name!r}: it was not answered whole, or the server counts "
                "no tokens.",
                param="request",
                hint="Choose another: its error is in the document.",
            )
    due, first, last = request.number("due_s"), request.number("first_s"), request.number("last_s")
    late = max(0.0, request.number("started_s", due) - due)
    waited = min(request.number("queue_s", 0.0), first - due - late)
    stalls = _stalls(request.series("gaps_us"), last - first)
    batch = _together(request, all_requests)
    which = f"request {request.count('index')}" + (f" ({pick})" if pick.startswith("p") else "")
    lateness = f"the client sent it {duration(late)} late" if late > 0.001 else ""
    notes = ["Queue and stalls are inferred from what the client saw."]
    if batch > 1:
        notes.append(f"{batch:.3g} answers came at once, in the mean.")
    return Observed(
        title=which,
        model=model,
        prompt=request.count("prompt_tokens"),
        cached=request.count("cached_tokens", 0),
        output=request.count("output_tokens"),
        batch=batch,
        phases={
            "queue": Spent(late + waited, why=lateness),
            "prefill": Spent(first - due - late - waited, why="" if "queue_s" in request else UNTOLD),
            "decode": Spent(last - first - stalls),
            "stalls": Spent(stalls, why="gaps of over 3 times the usual one" if stalls else ""),
        },
        notes=tuple(notes),
    )


def _stalls(gaps_us: Sequence[float], most: float) -> float:
    """Seconds by which long gaps exceed the usual one."""
    usual = median(gaps_us) if gaps_us else 0.0
    return min(sum(gap - usual for gap in gaps_us if gap > LONG_GAP * usual) / 1e6, most)


def _together(request: SourceFields, others: Iterable[SourceFields]) -> float:
    """Answers that came during this one's, in the mean, itself included."""
    start, end = request.number("first_s"), request.number("last_s")
    if end <= start:
        return 1.0
    shared = 0.0
    for each in others:
        if "first_s" in each and "last_s" in each:
            shared += max(0.0, min(end, each.number("last_s")) - max(start, each.number("first_s")))
    return max(1.0, shared / (end - start))
