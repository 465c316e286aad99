"""Reads the figures of a run from its document, and lists the figures that reports show.

Other programs may have written the document, so missing or invalid figures are None, not errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from twofold.bench.draw.form import number
from twofold.bench.metrics.distribution import NOTHING, MeasureDistribution
from twofold.bench.report.document import Run

_FINITE: Final = frozenset({"n", "failed", "mean", "std"})
"""Figures of a distribution that are never infinite."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table of latencies; ``path`` leads to its distribution in the summary."""

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
"""Titles and names of the figures of a distribution."""

RATES: Final = (
    ("requests/s", "requests_per_s"),
    ("input tokens/s", "input_tokens_per_s"),
    ("output tokens/s", "output_tokens_per_s"),
    ("total tokens/s", "total_tokens_per_s"),
)
WINDOWS: Final = (
    ("offered", "asked", "requests that became due in the measured window"),
    ("achieved", "achieved", "complete responses, up to the end of the last one"),
    ("steady", "steady", "everything received within the measured window"),
)
"""Titles, names in the document, and meanings of windows of rates."""


def value_at(summary: Mapping[str, Any], *path: str) -> Any:
    """The value at ``path``; None if it is missing."""
    found: Any = summary
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def number_at(summary: Mapping[str, Any], *path: str) -> float | None:
    """The number at ``path``; None if it is missing."""
    found = value_at(summary, *path)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with dotted names, without nulls."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value


def count_at(summary: Mapping[str, Any], *path: str) -> int:
    """The whole number at ``path``; 0 if it is missing."""
    return int(number_at(summary, *path) or 0)


def distribution(run: Run, measure: Measure) -> MeasureDistribution:
    """The distribution of a measure; its null percentiles are infinite, unless it has no values."""
    found = value_at(run.summary, *measure.path)
    if not isinstance(found, Mapping) or not number_at(found, "n"):
        return NOTHING
    values = {field.name: number_at(found, field.name) for field in fields(MeasureDistribution)}
    bounds = {name: math.inf if value is None and name not in _FINITE else value for name, value in values.items()}
    return MeasureDistribution(**{**bounds, "n": count_at(found, "n"), "failed": count_at(found, "failed")})  # type: ignore[arg-type]


def objectives(run: Run) -> dict[str, float]:
    """Limits of measures in seconds; empty without objectives."""
    found = value_at(run.summary, "goodput", "objectives")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(name): float(limit) for name, limit in pairs if isinstance(limit, int | float)}


def due_rate(run: Run) -> float | None:
    """The rate at which requests became due, in requests a second."""
    return number_at(run.summary, "rates", "asked", "requests_per_s")


def requested_rate(run: Run) -> float | None:
    """The requested rate of arrivals; None for traces and closed loops."""
    return number_at(run.load, "arrivals", "rate")


def offered_rate(run: Run) -> float | None:
    """The requested rate, or else the rate at which requests became due."""
    found = requested_rate(run)
    return due_rate(run) if found is None else found


def is_closed(run: Run) -> bool:
    """Whether there is no requested rate because requests wait for others: closed loops, a fixed number of sessions."""
    load = run.load
    return value_at(load, "kind") in ("closed", "sessions") and value_at(load, "arrivals") is None


def achieved(run: Run, name: str) -> float | None:
    """The rate ``name`` of complete responses; ``RATES`` has the names."""
    return number_at(run.summary, "rates", "achieved", name)


@dataclass(frozen=True, slots=True)
class SweepParameter:
    """The parameter that differs between runs: its titles, its value ``of`` a run, and its unit."""

    title: str
    axis: str
    of: Callable[[Run], float | None]
    unit: str

    def at(self, run: Run) -> str:
        """4 requests/s requested"""
        return f"{number(self.of(run))} {self.unit}"


def clients(run: Run) -> float | None:
    """The clients of a closed loop; None for other loads."""
    return number_at(run.load, "concurrency") if value_at(run.load, "kind") == "closed" else None


RATE: Final = SweepParameter("rate", "requested rate (requests/s)", offered_rate, "requests/s requested")
CLIENTS: Final = SweepParameter("concurrency", "concurrency", clients, "concurrent requests")


def step_of(runs: Sequence[Run]) -> SweepParameter:
    """The concurrency if all runs are closed loops, else the rate."""
    return CLIENTS if runs and all(clients(run) is not None for run in runs) else RATE


def run_titles(step: SweepParameter) -> tuple[str, ...]:
    """Titles of a table with a row for each run."""
    latency = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99")
    return ("run", step.title, "offered/s", "achieved/s", "tokens/s", *latency, "met")
