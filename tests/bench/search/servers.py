"""Simulated servers with a known capacity: one queue, served in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.bench.metrics.samples import record, sample
from twofold.bench.metrics.distribution import Floats
from twofold.bench.record import RequestSample, RunRecord


@dataclass(slots=True)
class Line:
    """Poisson arrivals. Each request takes ``service(rng, n)`` seconds, then its two tokens arrive.

    ``decode_growth``: seconds that the second token takes longer, for each second of the run.
    """

    service: Callable[[np.random.Generator, int], Floats]
    failing_from: float | None = None
    decode_growth: float = 0.0
    runs: list[tuple[float, float, int]] = field(default_factory=list)

    def __call__(self, rate: float, seconds: float, seed: int) -> RunRecord:
        self.runs.append((rate, seconds, seed))
        due, done = play(self, rate, seconds, seed)
        rows = [self._sample(at, *moments) for at, moments in enumerate(zip(due, done, strict=True))]
        return record(rows, seconds)

    def _sample(self, at: int, due: float, done: float) -> RequestSample:
        if self.failing_from is not None and done - due > self.failing_from:
            return sample(due, [], index=at, outcome="refused", status=503, error="full")
        return sample(due, [done, done + 0.01 + self.decode_growth * due], index=at)


def fixed(seconds: float) -> Line:
    """M/D/1."""
    return Line(lambda _, n: np.full(n, seconds))


def exponential(seconds: float) -> Line:
    """M/M/1."""
    return Line(lambda rng, n: rng.exponential(seconds, n))


def play(line: Line, rate: float, seconds: float, seed: int) -> tuple[list[float], list[float]]:
    """When requests were due, and when they were served."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.5) + 100))
    due = due[due < seconds]
    service = line.service(rng, len(due))
    before = np.concatenate([[0.0], np.cumsum(service)[:-1]])
    started = before + np.maximum.accumulate(due - before)
    return due.tolist(), (started + service).tolist()


def capacity(line: Line, limit: float, attainment: float) -> float:
    """The rate at which that share of requests is served within ``limit`` seconds, in a very long run."""
    low, high = 1e-3, 1e4
    for _ in range(40):
        rate = (low * high) ** 0.5
        due, done = play(line, rate, 40_000 / rate, 1)
        share = np.mean(np.array(done) - np.array(due) <= limit) if due else 1.0
        low, high = (rate, high) if share >= attainment else (low, rate)
    return low
