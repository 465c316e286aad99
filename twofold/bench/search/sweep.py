"""Sweeps of rates, for curves of latency and throughput."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.metrics.summary import Summary, summarise
from twofold.bench.record import plain
from twofold.bench.search.rate import LoadRunner
from twofold.core.errors import ParameterError, describe_name

MAX_RATES: Final = 100
"""Maximum number of rates of a sweep."""

_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"
_RANGE: Final = re.compile(rf"{_NUMBER}\.\.{_NUMBER}([x+]){_NUMBER}")
_HINT: Final = "write 1,2,4 or 1..16x2, each twice the one before, or 2..10+2, each two more"


def sweep(
    run: LoadRunner,
    rates: Sequence[float],
    seconds: float,
    rule: MeasurementRule | None = None,
    objectives: Objectives | None = None,
) -> dict[str, Any]:
    """Runs each rate for ``seconds`` until one is interrupted; returns the points of a curve as plain data."""
    points: list[dict[str, Any]] = []
    interrupted = False
    for seed, rate in enumerate(rates):
        record = run(rate, seconds, seed)
        points.append(_point(rate, summarise(record, rule, objectives)))
        interrupted = record.interrupted
        if interrupted:
            break
    return {"interrupted": interrupted, "points": points}


def _point(rate: float, summary: Summary) -> dict[str, Any]:
    achieved, goodput = summary.rates.achieved, summary.goodput
    latencies = {name: getattr(summary.latency, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
    return {
        "rate": rate,
        "requests_per_s": achieved.requests_per_s if achieved else None,
        "output_tokens_per_s": achieved.output_tokens_per_s if achieved else None,
        **{name: plain({"p50": found.p50, "p99": found.p99}) for name, found in latencies.items()},
        "attainment": goodput.attainment if goodput else None,
    }


def parse_rates(text: str) -> tuple[float, ...]:
    """Parses ``1,2,4``, ``1..16x2`` or ``2..10+2`` into ascending, distinct rates. Raises ParameterError."""
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
    """From ``first`` to ``last``, included if a step reaches it."""
    if not 0 < first <= last or (step <= 1 if how == "x" else step <= 0):
        raise ParameterError("a range of rates must go up from more than 0", param="rates", hint=_HINT)
    rates: list[float] = []
    while len(rates) <= MAX_RATES:
        at = first * step ** len(rates) if how == "x" else first + step * len(rates)
        if at > last * (1 + 1e-9):
            break
        rates.append(round(at, 9))
    return rates
