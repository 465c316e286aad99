"""A simulation against a measurement: the requests of a ``twofold bench`` document, asked of a simulated engine.

Of each run the requests that were answered are replayed as they were due, with the prompt, cached and output tokens
that the server counted. Prompts share what the document says that they share, or as much as was found cached. Where a
closed loop was measured, no more jobs are open at once than it had clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from twofold.bench.load.base import Outcome, Shared
from twofold.core.errors import FormatError, unreadable
from twofold.planner.simulate.figures import Floats, Quantiles, per_token
from twofold.planner.simulate.fleet import simulate
from twofold.planner.simulate.jobs import SimulatedJob
from twofold.planner.simulate.records import Replica
from twofold.planner.simulate.route import RoundRobin

BENCH_SCHEMA: Final = "twofold.bench/1"
WRITE_ONE: Final = "Write one: twofold bench -o FILE.json"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run: what was asked, and (jobs,) TTFT and TPOT in seconds; no number where a request has none."""

    load: Mapping[str, Any]
    jobs: tuple[SimulatedJob, ...]
    ttft: Floats
    tpot: Floats
    left_out: int

    @property
    def max_open(self) -> int | None:
        concurrency = self.load.get("concurrency")
        return concurrency if isinstance(concurrency, int) else None


@dataclass(frozen=True, slots=True)
class PercentileError:
    """One percentile: measured and simulated seconds. ``error`` is (simulated − measured) / measured."""

    measure: str
    percentile: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        return (self.simulated - self.measured) / self.measured if self.measured else 0.0


def read_bench(path: Path) -> tuple[Mapping[str, Any], tuple[MeasuredRun, ...]]:
    """The document and its runs. FormatError for what is none, or holds no answered request."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise FormatError(f"{path.name} is not valid JSON: {error}.", hint="Write one: twofold bench -o FILE") from None
    if not isinstance(document, dict) or document.get("schema") != BENCH_SCHEMA:
        raise FormatError(f"{path.name} is not a result of twofold bench ({BENCH_SCHEMA}).", hint=WRITE_ONE)
    runs = tuple(_measured(run, path) for run in document["runs"])
    if not any(run.jobs for run in runs):
        raise FormatError(
            f"{path.name} holds no request that was answered and whose tokens the server counted.",
            hint="It must be written with -o FILE.json; --json alone does not store the requests.",
        )
    return document, runs


def check(measured: MeasuredRun, replica: Replica, delay_s: float = 0.0) -> tuple[PercentileError, ...]:
    """Simulates a run and compares P50 and P99 of TTFT and TPOT. ``delay_s`` is what a request takes to get in."""
    found = simulate(_Again(measured), [replica], RoundRobin(), delay_s=delay_s).jobs
    return (
        *_compared("ttft", measured.ttft, np.array(found.first_s) - np.array(found.due_s)),
        *_compared("tpot", measured.tpot, per_token(found)),
    )


def _compared(name: str, measured: Floats, simulated: Floats) -> Iterator[PercentileError]:
    here, there = (Quantiles.of(values[~np.isnan(values)]) for values in (measured, simulated))
    for percentile in ("p50", "p99"):
        before, after = getattr(here, percentile), getattr(there, percentile)
        if before is not None and after is not None:
            yield PercentileError(name, percentile, before, after)


class _Again:
    """The jobs of a run, asked as they were."""

    follows = False

    def __init__(self, measured: MeasuredRun) -> None:
        self._jobs = measured.jobs
        self.max_open = measured.max_open

    def begin(self) -> Iterator[SimulatedJob]:
        return iter(self._jobs)

    def ended(self, job: SimulatedJob, outcome: Outcome, ended_s: float) -> SimulatedJob | None:  # noqa: ARG002 - the seam
        """Nothing: every request of the document stands by itself."""
        return None


def _measured(run: Mapping[str, Any], path: Path) -> MeasuredRun:
    requests = run.get("requests")
    if not isinstance(requests, list):
        raise FormatError(f"{path.name}: a run has no list of requests.", hint=WRITE_ONE)
    kept = [request for request in requests if _counts(request)]
    kept.sort(key=lambda request: (request["due_s"], request["index"]))
    return MeasuredRun(
        run.get("load", {}),
        tuple(_job(index, request) for index, request in enumerate(kept)),
        np.array([request["ttft_s"] for request in kept], np.float64),
        np.array([np.nan if request["tpot_s"] is None else request["tpot_s"] for request in kept], np.float64),
        len(requests) - len(kept),
    )


def _counts(request: Mapping[str, Any]) -> bool:
    needed = ("prompt_tokens", "output_tokens", "ttft_s", "due_s")
    return request.get("outcome") == "ok" and all(request.get(name) is not None for name in needed)


def _job(index: int, request: Mapping[str, Any]) -> SimulatedJob:
    prompt, output = request["prompt_tokens"], max(1, request["output_tokens"])
    session = request.get("session")
    shared = min(prompt, max(request.get("shared_tokens") or 0, request.get("cached_tokens") or 0))
    if session is not None:
        return SimulatedJob(index, request["due_s"], prompt, output, (), -1 - session)
    return SimulatedJob(index, request["due_s"], prompt, output, (Shared(0, shared),) if shared else (), index)
