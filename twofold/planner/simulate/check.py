"""A simulation against a measurement: the requests of a ``twofold bench`` document, sent to a simulated engine.

The completed requests of each run are replayed when they were due, with the prompt, cached and output tokens that the
server counted. Prompts share as many tokens as the document says, or as many as were cached. For a closed loop, at most
as many jobs are open at once as it had clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from twofold.bench.load.base import Shared
from twofold.core.errors import FormatError, unreadable
from twofold.fleet.routing.router import RoundRobin
from twofold.planner.explain.sources import DocumentFields
from twofold.planner.simulate.figures import NAMES, Floats, Quantiles, per_token, time_words
from twofold.planner.simulate.fleet import simulate
from twofold.planner.simulate.jobs import IndependentJobs, Replica, SimulatedJob

BENCH_SCHEMA: Final = "twofold.bench/1"
WRITE_ONE: Final = "Write one: twofold bench -o FILE.json"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run: its jobs, and (jobs,) TTFT and TPOT in seconds, NaN if unknown.

    max_open   clients of a closed loop; None for other loads
    left_out   number of requests that failed or have no token counts
    """

    max_open: int | None
    jobs: tuple[SimulatedJob, ...]
    ttft: Floats
    tpot: Floats
    left_out: int


@dataclass(frozen=True, slots=True)
class PercentileError:
    """One percentile: measured and simulated seconds."""

    measure: str
    percentile: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return (self.simulated - self.measured) / self.measured if self.measured else 0.0


def read_bench(path: Path) -> tuple[DocumentFields, tuple[MeasuredRun, ...]]:
    """The document and its runs. Raises FormatError for another file, or one without a completed request."""
    try:
        document = DocumentFields.parse(path.read_bytes(), path.name, WRITE_ONE)
    except OSError as error:
        raise unreadable(path, error) from error
    if document.values.get("schema") != BENCH_SCHEMA:
        raise FormatError(f"{path.name} is not a result of twofold bench ({BENCH_SCHEMA}).", hint=WRITE_ONE)
    runs = tuple(map(_measured, document.parts("runs")))
    if not any(run.jobs for run in runs):
        raise FormatError(
            f"{path.name} has no completed request with token counts.",
            hint="Write the file with -o FILE.json; --json alone does not store the requests.",
        )
    return document, runs


def check(measured: MeasuredRun, replica: Replica, delay_s: float = 0.0) -> tuple[PercentileError, ...]:
    """Simulates a run and compares P50 and P99 of TTFT and TPOT. ``delay_s``: seconds from due to arrival."""
    jobs = IndependentJobs(measured.jobs, measured.max_open)
    found = simulate(jobs, [replica], RoundRobin(), delay_s=delay_s).jobs
    return (
        *_compared("ttft", measured.ttft, np.array(found.first_s) - np.array(found.due_s)),
        *_compared("tpot", measured.tpot, per_token(found)),
    )


def _compared(name: str, measured: Floats, simulated: Floats) -> Iterator[PercentileError]:
    both = [Quantiles.of(values[~np.isnan(values)]) for values in (measured, simulated)]
    for percentile in ("p50", "p99"):
        took, predicted = (getattr(quantiles, percentile) for quantiles in both)
        if took is not None and predicted is not None:
            yield PercentileError(name, percentile, took, predicted)


def compared_lines(found: tuple[PercentileError, ...]) -> Iterator[str]:
    """Measured percentiles, simulated ones and their errors, as a table."""
    yield f"{'':10}{'measured':>12}{'simulated':>12}{'error':>9}"
    for each in found:
        label = f"{NAMES[each.measure]} {each.percentile.upper()}"
        yield f"{label:10}{time_words(each.measured):>12}{time_words(each.simulated):>12}{each.error:>+9.1%}"


def _measured(run: DocumentFields) -> MeasuredRun:
    requests = run.parts("requests")
    kept = [request for request in requests if _completed(request)]
    kept.sort(key=lambda request: (request.number("due_s"), request.count("index")))
    load = run.part("load")
    return MeasuredRun(
        load.count("concurrency") if load is not None and "concurrency" in load else None,
        tuple(_job(index, request) for index, request in enumerate(kept)),
        np.array([request.number("ttft_s") for request in kept], np.float64),
        np.array([request.number("tpot_s") if "tpot_s" in request else np.nan for request in kept], np.float64),
        len(requests) - len(kept),
    )


def _completed(request: DocumentFields) -> bool:
    needed = ("prompt_tokens", "output_tokens", "ttft_s", "due_s")
    return request.optional_text("outcome") == "ok" and all(name in request for name in needed)


def _job(index: int, request: DocumentFields) -> SimulatedJob:
    prompt, output = request.count("prompt_tokens"), max(1, request.count("output_tokens"))
    due_s = request.number("due_s")
    if "session" in request:
        return SimulatedJob(index, due_s, prompt, output, (), -1 - request.count("session"))
    shared = min(prompt, max(request.count("shared_tokens", 0), request.count("cached_tokens", 0)))
    return SimulatedJob(index, due_s, prompt, output, (Shared(0, shared),) if shared else (), index)
