"""A curve of latency and throughput over rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.rule import MeasurementRule
from twofold.bench.metrics.summary import Summary, summarise
from twofold.bench.record import plain
from twofold.bench.search.rate import LoadRunner
from twofold.core.errors import ParameterError, describe_name

MAX_RATES: Final = 100
"""Rates of one sweep."""

_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"
_RANGE: Final = re.compile(rf"{_NUMBER}\.\.{_NUMBER}([x+]){_NUMBER}")
_HINT: Final = "write 1,2,4 or 1..16x2, each twice the one before, or 2..10+2, each two more"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A rate of a sweep, and what was measured at it."""

    rate: float
    summary: Summary

    def to_json(self) -> dict[str, Any]:
        """What a curve is drawn from."""
        latency, rates, goodput = self.summary.latency, self.summary.rates, self.summary.goodput
        measures = {"ttft_s": latency.ttft_s, "tpot_s": latency.tpot_s, "e2e_s": latency.e2e_s}
        return {
            "rate": self.rate,
            "requests_per_s": rates.achieved.requests_per_s if rates.achieved else None,
            "output_tokens_per_s": rates.achieved.output_tokens_per_s if rates.achieved else None,
            **{name: plain({"p50": found.p50, "p99": found.p99}) for name, found in measures.items()},
            "attainment": goodput.attainment if goodput else None,
        }


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rates that were run, in order; of the last not all where someone stopped it."""

    points: tuple[SweepPoint, ...]
    interrupted: bool

    def to_json(self) -> dict[str, Any]:
        return {"interrupted": self.interrupted, "points": [point.to_json() for point in self.points]}


def sweep(
    run: LoadRunner,
    rates: Sequence[float],
    seconds: float,
    rule: MeasurementRule | None = None,
    objectives: Objectives | None = None,
    tell: Callable[[SweepPoint], None] | None = None,
) -> Sweep:
    """Runs each rate for ``seconds``, ends with the first that someone stops, and tells ``tell`` of each."""
    points: list[SweepPoint] = []
    for seed, rate in enumerate(rates):
        record = run(rate, seconds, seed)
        points.append(SweepPoint(rate, summarise(record, rule, objectives)))
        if tell is not None:
            tell(points[-1])
        if record.interrupted:
            return Sweep(tuple(points), True)
    return Sweep(tuple(points), False)


def parse_rates(text: str) -> tuple[float, ...]:
    """Rates as ``1,2,4``, ``1..16x2`` or ``2..10+2``, ascending, each once. ParameterError for all else."""
    rates = sorted({rate for part in text.split(",") for rate in _part(part.strip())})
    if len(rates) > MAX_RATES:
        raise ParameterError(f"{len(rates)} rates are more than {MAX_RATES}", param="rates", hint="take larger steps")
    return tuple(rates)


def _part(text: str) -> list[float]:
    match = _RANGE.fullmatch(text)
    if match is not None:
        return _range(float(match[1]), float(match[2]), match[3], float(match[4]))
    if re.fullmatch(_NUMBER, text) and float(text) > 0:
        return [float(text)]
    raise ParameterError(f"{describe_name(text)} is not a rate", param="rates", hint=_HINT)


def _range(first: float, last: float, how: str, step: float) -> list[float]:
    """From ``first`` up to ``last``, which belongs to it where a step comes to it."""
    if not 0 < first <= last or (step <= 1 if how == "x" else step <= 0):
        raise ParameterError("a range of rates must go up from more than 0", param="rates", hint=_HINT)
    rates: list[float] = []
    while len(rates) <= MAX_RATES:
        at = first * step ** len(rates) if how == "x" else first + step * len(rates)
        if at > last * (1 + 1e-9):
            break
        rates.append(round(at, 9))
    return rates
