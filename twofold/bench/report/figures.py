"""Figures of a run as its document holds them, and which of them a report shows.

A document may come from elsewhere: what it lacks is no figure, and never an error of the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from twofold.bench.draw.form import number
from twofold.bench.metrics.distribution import NOTHING, MeasureDistribution
from twofold.bench.report.document import Run

_FINITE: Final = frozenset({"n", "failed", "mean", "std"})
"""Of a distribution, what is never infinite."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table of latencies; ``path`` is where the summary holds its distribution."""

    name: str
    path: tuple[str, str]
    meaning: str


TTFT: Final = Measure("TTFT", ("latency", "ttft_s"), "from when a request was due to its first output token")
TTFT_SENT: Final = Measure(
    "TTFT from send", ("latency", "ttft_sent_s"), "from when the client started to send it to its first output token"
)
DELAY: Final = Measure(
    "schedule delay", ("latency", "schedule_delay_s"), "from when it was due to when the client started to send it"
)
QUEUE: Final = Measure("queue (estimate)", ("latency", "queue_s"), "TTFT from send less the estimated prefill time")
TPOT: Final = Measure(
    "TPOT",
    ("latency", "tpot_s"),
    "time per output token after the first: (last − first) / (tokens − 1), one value per request",
)
ITL: Final = Measure("ITL, gaps", ("itl", "gap_s"), "every gap between two chunks, however many tokens they hold")
ITL_TOKEN: Final = Measure(
    "ITL, tokens", ("itl", "token_s"), "each gap divided by the tokens of the chunk that ends it, once per token"
)
E2E: Final = Measure("E2E", ("latency", "e2e_s"), "from when it was due to its last output token")

MEASURES: Final = (TTFT, TTFT_SENT, DELAY, QUEUE, TPOT, ITL, ITL_TOKEN, E2E)

COLUMNS: Final = (
    ("mean", "mean"),
    ("P50", "p50"),
    ("P90", "p90"),
    ("P95", "p95"),
    ("P99", "p99"),
    ("P99.9", "p99_9"),
    ("max", "max"),
)
"""Title and name of a distribution's figures."""

RATES: Final = (
    ("requests/s", "requests_per_s"),
    ("input tokens/s", "input_tokens_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
    ("total tokens/s", "total_tokens_per_s"),
)
WINDOWS: Final = (
    ("offered", "requests that became due in the measured window"),
    ("achieved", "complete responses, up to the end of the last one"),
    ("steady", "everything received within the measured window"),
)


def look(summary: Mapping[str, Any], *path: str) -> Any:
    """What is at the end of ``path``; None where there is nothing."""
    found: Any = summary
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def figure(summary: Mapping[str, Any], *path: str) -> float | None:
    """A number; None where there is none."""
    found = look(summary, *path)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def count(summary: Mapping[str, Any], *path: str) -> int:
    """A whole number; 0 where there is none."""
    return int(figure(summary, *path) or 0)


def distribution(summary: Mapping[str, Any], *path: str) -> MeasureDistribution:
    """With what JSON cannot say: a percentile that is null, of values that there are, is infinite."""
    found = look(summary, *path)
    if not isinstance(found, Mapping) or not figure(found, "n"):
        return NOTHING
    values = {field.name: figure(found, field.name) for field in fields(MeasureDistribution)}
    bounds = {name: math.inf if value is None and name not in _FINITE else value for name, value in values.items()}
    return MeasureDistribution(**{**bounds, "n": count(found, "n"), "failed": count(found, "failed")})  # type: ignore[arg-type]


def of(run: Run, measure: Measure) -> MeasureDistribution:
    return distribution(run.summary, *measure.path)


def objectives(run: Run) -> dict[str, float]:
    """Seconds that each measure may take; none without objectives."""
    found = look(run.summary, "goodput", "objectives")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(name): float(limit) for name, limit in pairs if isinstance(limit, int | float)}


def asked_rate(run: Run) -> float | None:
    return figure(run.summary, "rates", "asked", "requests_per_s")


def wanted_rate(run: Run) -> float | None:
    """The mean rate of random or even arrivals, as it was asked for; None of traces and closed loops."""
    return figure(run.load, "arrivals", "rate")


def offered_rate(run: Run) -> float | None:
    """The rate that was asked for, or else the one at which requests became due."""
    found = wanted_rate(run)
    return asked_rate(run) if found is None else found


def waits(run: Run) -> bool:
    """Whether requests wait for answers to others, so that nobody asked for a rate: a closed loop, or held sessions."""
    load = run.load
    return look(load, "kind") in ("closed", "sessions") and look(load, "arrivals") is None


def achieved(run: Run, name: str) -> float | None:
    """A rate of ``RATES``, of answers that are complete."""
    return figure(run.summary, "rates", "achieved", name)


@dataclass(frozen=True, slots=True)
class SweepParameter:
    """What differs between the runs of a sweep: ``of`` a run, in words for a table and for an axis, and its unit."""

    title: str
    axis: str
    word: str
    of: Callable[[Run], float | None]
    unit: str

    def at(self, run: Run) -> str:
        """4 requests/s requested"""
        return f"{number(self.of(run))} {self.unit}"


def clients(run: Run) -> float | None:
    """How many clients a closed loop has; None of any other load."""
    return figure(run.load, "concurrency") if look(run.load, "kind") == "closed" else None


RATE: Final = SweepParameter("rate", "requested rate (requests/s)", "rate", offered_rate, "requests/s requested")
CLIENTS: Final = SweepParameter("concurrency", "concurrency", "concurrency", clients, "concurrent requests")


def step_of(runs: Sequence[Run]) -> SweepParameter:
    """Clients where all runs are closed loops, else the rate."""
    return CLIENTS if runs and all(clients(run) is not None for run in runs) else RATE


def run_titles(step: SweepParameter) -> tuple[str, ...]:
    """Of a table with a row for each run."""
    latency = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99")
    return ("run", step.title, "offered/s", "achieved/s", "tokens/s", *latency, "met")


def by_step(runs: Sequence[Run], step: SweepParameter) -> list[tuple[int, Run]]:
    """Runs with their places, by rising rate or concurrency."""
    return sorted(enumerate(runs), key=lambda each: (step.of(each[1]) or 0.0, each[0]))


def window_of(title: str) -> str:
    """The name of a window in the document."""
    return {"offered": "asked"}.get(title, title)
