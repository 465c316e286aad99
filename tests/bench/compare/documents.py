"""Documents of simulated servers with known properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.bench.metrics.samples import record, sample
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.metrics.summary import summarise
from twofold.bench.record import RequestSample, RunRecord
from twofold.bench.report.document import SCHEMA, ClientMachine, Document, Run, Target, run_of

MACHINE = ClientMachine(
    processor="a processor", cores=2, usable_threads=2, memory_bytes=1 << 30, system="a system", python="3.11"
)


def served(
    seed: int, n: int = 400, *, rate: float = 6.0, slower: float = 1.0, failing: float = 0.0, chunks: int = 4
) -> list[RequestSample]:
    """Poisson arrivals at one queue with a service time of 0.1 s; all times are multiplied by ``slower``."""
    rng = np.random.default_rng(seed)
    due, service = np.cumsum(rng.exponential(1 / rate, n)), rng.exponential(0.1 * slower, n)
    before = np.concatenate([[0.0], np.cumsum(service)[:-1]])
    first = before + np.maximum.accumulate(due - before) + service
    gaps = rng.gamma(4.0, 0.005 * slower, (n, chunks - 1))
    fails = rng.random(n) < failing
    return [
        sample(float(start), [], index=at, outcome="failed", status=500, error="broken", ended=float(start))
        if fails[at]
        else sample(float(start), (first[at] + np.append(0.0, np.cumsum(gaps[at]))).tolist(), index=at, usage=chunks)
        for at, start in enumerate(due)
    ]


def run(
    samples: Sequence[RequestSample],
    load: Mapping[str, Any] | None = None,
    objectives: Objectives | None = None,
    *,
    rule: MeasurementRule | None = None,
    chunks: bool = True,
    **stopped: Any,
) -> Run:
    said = {"kind": "open", "arrivals": {"kind": "poisson", "rate": 6.0}, "seed": 1}
    found: RunRecord = record(samples, samples[-1].ask.due_s if samples else 0.0, **stopped)
    found = replace(found, load=said if load is None else load)
    rule = rule or MeasurementRule()
    return run_of(found, rule, summarise(found, rule, objectives).to_json(), chunks=chunks)


def document(*runs: Run, model: str = "a-model", version: str = "1", **settings: Any) -> Document:
    target = Target(url="http://127.0.0.1:8000", endpoint="chat", model=model)
    return Document(
        schema=SCHEMA,
        version=version,
        command="serve",
        settings=settings,
        target=target,
        machine=MACHINE,
        runs=list(runs),
    )
