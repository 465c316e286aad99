"""Goodput of the fixed and the live token budget on a mixed trace.

Lengths are sampled from a trace of real conversations and scaled to this machine. Arrivals are a Poisson process at a
share of the rate that the engine serves when all requests arrive at once. The objectives: TTFT within ``TTFT_SCALE``
times that of a lone prompt of mean length, and TPOT (the mean of a request) within ``TPOT_SCALE`` times the step of
eight sequences, which is also the TPOT target of the live budget. Goodput is the requests per second that meet both
(after DistServe, OSDI 2024). Policies take turns with the same arrivals; nothing is simulated.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import ROOT, our_command
from benchmarks.figures import gaps, median, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker
from twofold.bench.load.base import Ask
from twofold.bench.load.synthetic import Arrivals
from twofold.bench.load.trace import read_trace
from twofold.bench.metrics.goodput import MeasuredGoodput, Objectives
from twofold.bench.metrics.requests import Chunks, InterTokenLatency, RequestFigures
from twofold.bench.metrics.summary import Latency
from twofold.bench.record import RecordedResponse, RequestSample

TRACE = Path("traces") / "azure_conv_2023.csv"
FIXED_ROWS = 512
SEQUENCES = 32
TTFT_SCALE, TPOT_SCALE = 6.0, 3.0
MAX_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """``seconds`` of arrivals in a round, ``divisor`` of the trace's lengths, ``calibration`` simultaneous requests."""

    seconds: float
    divisor: int
    calibration: int
    shares: tuple[float, ...]


FULL = Sizes(30.0, 2, 24, (0.5, 0.7))
QUICK = Sizes(1.0, 16, 4, (0.6,))


Lengths = Sequence[tuple[int, int]]
"""Input and output tokens of each request."""
Turns = dict[tuple[str, float], list[RequestSample]]
"""Requests of all rounds, by policy and share of the capacity."""


def read_lengths(path: Path, divisor: int) -> Lengths:
    """Lengths of a trace divided by ``divisor``: at least 1 input and 2 output tokens."""
    trace = read_trace(path)
    lengths = zip(trace.input_tokens, trace.output_tokens, strict=True)
    return [(max(1, inputs // divisor), max(2, outputs // divisor)) for inputs, outputs in lengths]


def run(setting: Setting, data: Path | None) -> dict[str, Any]:
    if data is None or not (data / TRACE).exists():
        print("\ngoodput  skipped: the trace is missing; set TWOFOLD_TEST_DATA to the folder of reference data")
        return {}
    sizes = QUICK if setting.quick else FULL
    lengths = read_lengths(data / TRACE, sizes.divisor)
    means = np.mean(lengths, axis=0)
    print(f"\ngoodput  trace lengths ÷ {sizes.divisor}: mean {means[0]:.0f} tokens in, {means[1]:.0f} out")
    floor = setting.serve_floor(8, *(round(mean) for mean in means)) / 8
    print(f"  limit: {1 / floor:.1f} requests/s by the cost model, eight at a time", flush=True)
    with Worker("twofold", our_command(), ROOT.parent) as worker:
        objectives, capacity = _calibrate(worker, setting, sizes, lengths)
        turns = _measure(worker, setting, sizes, lengths, objectives, capacity)
    table = _table(turns, objectives, min(setting.rounds, MAX_ROUNDS) * sizes.seconds)
    report = {
        "objectives": {f"{name}_s": limit for name, limit in objectives.limits()},
        "capacity_requests_s": capacity,
        "limit_requests_s": 1 / floor,
    }
    print(f"  serves {capacity:.2f} requests/s when all arrive at once; objectives: {objectives}")
    for name, row in table.items():
        _print(name, row)
    return {**report, "policies": table, "live_over_fixed": _gains(table, sizes)}


def _calibrate(worker: Worker, setting: Setting, sizes: Sizes, lengths: Lengths) -> tuple[Objectives, float]:
    """The objectives, and requests per second when all arrive at once, under the fixed budget."""
    _load(worker, setting, _policies(1.0)["fixed"])
    mean = [int(value) for value in np.mean(lengths, axis=0)]
    alone = [_drive(worker, setting, [Ask(0, 0.0, mean[0], 2)], 900 + i) for i in range(3)]
    ttft = median(sample.first_s or 0.0 for served in alone for sample in served)
    eight = _drive(worker, setting, [Ask(i, 0.0, 64, 40) for i in range(8)], 910)
    step = median(gap for sample in eight for gap in gaps(sample.response.moments[8:]))
    chosen = [lengths[i] for i in np.random.default_rng(3).integers(0, len(lengths), sizes.calibration)]
    served = _drive(worker, setting, [Ask(i, 0.0, *pair) for i, pair in enumerate(chosen)], 920)
    capacity = len(served) / max(sample.last_s or 0.0 for sample in served)
    return Objectives(ttft=TTFT_SCALE * ttft, tpot=TPOT_SCALE * step), capacity


def _measure(
    worker: Worker, setting: Setting, sizes: Sizes, lengths: Lengths, objectives: Objectives, capacity: float
) -> Turns:
    turns: Turns = {}
    assert objectives.tpot is not None
    policies = list(_policies(objectives.tpot).items())
    for turn in range(min(setting.rounds, MAX_ROUNDS)):
        for name, options in policies if turn % 2 == 0 else reversed(policies):
            _load(worker, setting, options)
            _drive(worker, setting, poisson(lengths, 8.0, 1.0, 5), 930)
            for share in sizes.shares:
                asks = poisson(lengths, share * capacity, sizes.seconds, 10 + turn)
                turns.setdefault((name, share), []).extend(_drive(worker, setting, asks, 1_000 * (turn + 1)))
    return turns


def _policies(tpot_s: float) -> dict[str, dict[str, Any]]:
    return {
        "fixed": {"token_budget": "fixed", "max_num_batched_tokens": FIXED_ROWS},
        "live": {"token_budget": "live", "tpot_target_ms": 1e3 * tpot_s},
    }


def _load(worker: Worker, setting: Setting, options: dict[str, Any]) -> None:
    worker.ask(
        op="load",
        path=str(setting.path),
        threads=setting.threads,
        context=setting.context,
        streams=SEQUENCES,
        options=options,
    )


def poisson(lengths: Lengths, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals at ``rate`` per second, the first at 0 s, with lengths sampled from a trace."""
    random = np.random.default_rng(seed)
    moments = takewhile(lambda moment: moment < seconds, Arrivals(rate).moments(seed))
    return [
        Ask(index, moment, *lengths[int(random.integers(len(lengths)))])
        for index, moment in enumerate(chain((0.0,), moments))
    ]


def _drive(worker: Worker, setting: Setting, asks: Sequence[Ask], seed: int) -> list[RequestSample]:
    """Runs requests with distinct random prompts, as samples like those of the load generator."""
    arrivals = [
        {
            "at": ask.due_s,
            "prompt": random_tokens(ask.input_tokens, setting.vocabulary, seed + ask.index),
            "count": ask.output_tokens,
        }
        for ask in asks
    ]
    served = worker.ask(op="drive", arrivals=arrivals)
    return [as_sample(ask, one["times"]) for ask, one in zip(asks, served, strict=True)]


def as_sample(ask: Ask, times: Sequence[float]) -> RequestSample:
    """A completed request that received one token at each of ``times``, in seconds."""
    answer = RecordedResponse(array("d", times), array("i", [1] * len(times)), completion_tokens=len(times), done=True)
    return RequestSample(ask, answer, "ok", started_s=ask.due_s, ended_s=times[-1])


def _table(turns: Turns, objectives: Objectives, seconds: float) -> dict[str, dict[str, Any]]:
    """A row for each policy and share. Goodput is per second of arrivals; ``seconds`` is their total duration."""
    table = {}
    for (name, share), served in sorted(turns.items(), key=lambda item: (item[0][1], item[0][0])):
        figures = [RequestFigures.of(sample) for sample in served]
        goodput, latency = MeasuredGoodput.of(figures, objectives, seconds), Latency.of(figures)
        table[f"{share:g} {name}"] = {
            "requests": len(served),
            "met_share": goodput.attainment,
            "goodput_requests_s": goodput.requests_per_s,
            "ttft_met_share": 1 - goodput.misses.ttft / len(served),
            "tpot_met_share": 1 - goodput.misses.tpot / len(served),
            "ttft_p50_s": latency.ttft_s.p50,
            "ttft_p99_s": latency.ttft_s.p99,
            "tpot_p99_s": latency.tpot_s.p99,
            "itl_p99_s": InterTokenLatency.of(served, Chunks.of(served)).gap_s.p99,
        }
    return table


def _gains(table: dict[str, dict[str, Any]], sizes: Sizes) -> dict[str, float | None]:
    """Goodput of the live budget over the fixed one, by share of the capacity; None if the fixed one has 0."""
    gains: dict[str, float | None] = {}
    for share in sizes.shares:
        live, fixed = (table[f"{share:g} {name}"]["goodput_requests_s"] for name in ("live", "fixed"))
        gains[f"{share:g}"] = live / fixed if fixed else None
        print(f"  at {share:g} of capacity goodput is {live:.2f}/s live, {fixed:.2f}/s fixed", end="")
        print(f": {live / fixed:.2f}×" if fixed else "")
    return gains


def _print(name: str, row: dict[str, Any]) -> None:
    print(
        f"  {name:10s}  {row['requests']:3.0f} requests, {row['met_share']:4.0%} meet both "
        f"(TTFT {row['ttft_met_share']:.0%}, TPOT {row['tpot_met_share']:.0%}), "
        f"goodput {row['goodput_requests_s']:.2f}/s; TTFT s P50 {row['ttft_p50_s']:.2f} P99 {row['ttft_p99_s']:.2f}, "
        f"ms P99 TPOT {row['tpot_p99_s'] * 1e3:.0f} ITL {row['itl_p99_s'] * 1e3:.0f}",
        flush=True,
    )
