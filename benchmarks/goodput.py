"""Requests that meet their objectives, under a fixed budget of rows and under the live one, on a mixed trace.

Lengths are drawn from a trace of real conversations, scaled to this machine; arrivals are a Poisson process of a rate
given as a share of what the engine serves when all requests are there at once. The objectives come from it too: TTFT
within ``TTFT_SCALE`` times what a prompt of mean length takes alone, TPOT (the mean of a request) within ``TPOT_SCALE``
times the step of eight sequences alone. The live budget is told that TPOT. Goodput is requests that meet both, a second
(after DistServe, OSDI 2024). Policies take turns with the same arrivals; nothing is simulated.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import ROOT, our_command
from benchmarks.figures import gaps, median, percentile, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker

TRACE = Path("traces") / "azure_conv_2023.csv"
FIXED_ROWS = 512
SEQUENCES = 32
TTFT_SCALE, TPOT_SCALE = 6.0, 3.0
MOST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """``seconds`` of arrivals in a turn, ``divisor`` of the trace's lengths, ``calibration`` requests at once."""

    seconds: float
    divisor: int
    calibration: int
    shares: tuple[float, ...]


FULL = Sizes(30.0, 2, 24, (0.5, 0.7))
QUICK = Sizes(1.0, 16, 4, (0.6,))


Turns = dict[tuple[str, float], list[list[dict[str, Any]]]]
"""What was served in each turn, by policy and share of the capacity."""


@dataclass(frozen=True, slots=True)
class Objectives:
    ttft_s: float
    tpot_s: float

    def met_by(self, served: dict[str, Any]) -> bool:
        return bool(served["ttft"] <= self.ttft_s and tpot(served) <= self.tpot_s)


def tpot(served: dict[str, Any]) -> float:
    """Mean seconds of a token after the first; 0 for an answer of one."""
    times = served["times"]
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


def read_lengths(path: Path, divisor: int) -> list[tuple[int, int]]:
    """Tokens in and out of each request of the trace, divided, at least 1 and 2."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return [(max(1, given // divisor), max(2, made // divisor)) for given, made in rows]


def run(setting: Setting, data: Path | None) -> dict[str, Any]:
    if data is None or not (data / TRACE).exists():
        print("\ngoodput  skipped: TWOFOLD_TEST_DATA names no folder with the trace")
        return {}
    sizes = QUICK if setting.quick else FULL
    lengths = read_lengths(data / TRACE, sizes.divisor)
    means = np.mean(lengths, axis=0)
    print(f"\ngoodput  trace lengths ÷ {sizes.divisor}: mean {means[0]:.0f} tokens in, {means[1]:.0f} out")
    floor = setting.prefill_floor(int(means[0])) + means[1] * setting.step_floor([int(means.sum())] * 8) / 8
    print(f"  limit: {1 / floor:.1f} requests/s by the cost model, eight at a time", flush=True)
    with Worker("twofold", our_command(), ROOT.parent) as worker:
        objectives, capacity = _calibrate(worker, setting, sizes, lengths)
        turns = _measure(worker, setting, sizes, lengths, objectives, capacity)
    table = _table(turns, objectives, sizes)
    report = {"objectives": asdict(objectives), "capacity_requests_s": capacity, "limit_requests_s": 1 / floor}
    print(
        f"  serves {capacity:.2f} requests/s when all are there; "
        f"objectives: TTFT {objectives.ttft_s:.2f} s, TPOT {objectives.tpot_s * 1e3:.0f} ms"
    )
    for name, row in table.items():
        _print(name, row)
    return {**report, "policies": table, "live_over_fixed": _gains(table, sizes)}


def _calibrate(
    worker: Worker, setting: Setting, sizes: Sizes, lengths: Sequence[tuple[int, int]]
) -> tuple[Objectives, float]:
    """What the objectives are made from, and requests a second when all are there at once, with the fixed budget."""
    _load(worker, setting, _policies(Objectives(1.0, 1.0))["fixed"])
    mean = [int(value) for value in np.mean(lengths, axis=0)]
    alone = [_requests([(0.0, mean[0], 2)], setting, 900 + i) for i in range(3)]
    ttft = median(worker.ask(op="drive", arrivals=arrivals)[0]["ttft"] for arrivals in alone)
    eight = worker.ask(op="drive", arrivals=_requests([(0.0, 64, 40)] * 8, setting, 910))
    step = median(gap for served in eight for gap in gaps(served["times"][8:]))
    chosen = [lengths[i] for i in np.random.default_rng(3).integers(0, len(lengths), sizes.calibration)]
    served = worker.ask(op="drive", arrivals=_requests([(0.0, *pair) for pair in chosen], setting, 920))
    capacity = len(chosen) / max(one["times"][-1] for one in served)
    return Objectives(TTFT_SCALE * ttft, TPOT_SCALE * step), capacity


def _measure(
    worker: Worker,
    setting: Setting,
    sizes: Sizes,
    lengths: Sequence[tuple[int, int]],
    objectives: Objectives,
    capacity: float,
) -> Turns:
    turns: Turns = {}
    policies = list(_policies(objectives).items())
    for turn in range(min(setting.rounds, MOST_ROUNDS)):
        for name, options in policies if turn % 2 == 0 else reversed(policies):
            _load(worker, setting, options)
            worker.ask(op="drive", arrivals=_requests(poisson(lengths, 8.0, 1.0, 5), setting, 930))
            for share in sizes.shares:
                drawn = poisson(lengths, share * capacity, sizes.seconds, 10 + turn)
                served = worker.ask(op="drive", arrivals=_requests(drawn, setting, 1_000 * (turn + 1)))
                turns.setdefault((name, share), []).append(served)
    return turns


def _policies(objectives: Objectives) -> dict[str, dict[str, Any]]:
    return {
        "fixed": {"token_budget": "fixed", "max_num_batched_tokens": FIXED_ROWS},
        "live": {"token_budget": "live", "tpot_target_ms": 1e3 * objectives.tpot_s},
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


def poisson(lengths: Sequence[tuple[int, int]], rate: float, seconds: float, seed: int) -> list[tuple[float, int, int]]:
    """Arrivals (s, tokens in, tokens out) of a Poisson process with lengths drawn from a trace; at least one."""
    random = np.random.default_rng(seed)
    found: list[tuple[float, int, int]] = []
    moment = 0.0
    while not found or moment < seconds:
        found.append((moment, *lengths[int(random.integers(len(lengths)))]))
        moment += float(random.exponential(1 / rate))
    return found


def _requests(drawn: Sequence[tuple[float, int, int]], setting: Setting, seed: int) -> list[dict[str, Any]]:
    return [
        {"at": at, "prompt": random_tokens(given, setting.vocabulary, seed + i), "count": made}
        for i, (at, given, made) in enumerate(drawn)
    ]


def _table(turns: Turns, objectives: Objectives, sizes: Sizes) -> dict[str, dict[str, float]]:
    """A row for each policy and share. Goodput is a second of arrivals."""
    table = {}
    for (name, share), rounds in sorted(turns.items(), key=lambda item: (item[0][1], item[0][0])):
        served = [one for requests in rounds for one in requests]
        met = sum(objectives.met_by(one) for one in served)
        table[f"{share:g} {name}"] = {
            "requests": len(served),
            "met_share": met / len(served),
            "goodput_requests_s": met / (len(rounds) * sizes.seconds),
            "ttft_met_share": sum(one["ttft"] <= objectives.ttft_s for one in served) / len(served),
            "tpot_met_share": sum(tpot(one) <= objectives.tpot_s for one in served) / len(served),
            "ttft_p50_s": percentile((one["ttft"] for one in served), 0.5),
            "ttft_p99_s": percentile((one["ttft"] for one in served), 0.99),
            "tpot_p99_s": percentile((tpot(one) for one in served), 0.99),
            "itl_p99_s": percentile((gap for one in served for gap in gaps(one["times"])), 0.99),
        }
    return table


def _gains(table: dict[str, dict[str, float]], sizes: Sizes) -> dict[str, float | None]:
    """Goodput of the live budget over that of the fixed one, by share of the capacity; None where that is 0."""
    gains: dict[str, float | None] = {}
    for share in sizes.shares:
        live, fixed = (table[f"{share:g} {name}"]["goodput_requests_s"] for name in ("live", "fixed"))
        gains[f"{share:g}"] = live / fixed if fixed else None
        print(f"  at {share:g} of capacity goodput is {live:.2f}/s live, {fixed:.2f}/s fixed", end="")
        print(f": {live / fixed:.2f}×" if fixed else "")
    return gains


def _print(name: str, row: dict[str, float]) -> None:
    print(
        f"  {name:10s}  {row['requests']:3.0f} requests, {row['met_share']:4.0%} meet both "
        f"(TTFT {row['ttft_met_share']:.0%}, TPOT {row['tpot_met_share']:.0%}), "
        f"goodput {row['goodput_requests_s']:.2f}/s; TTFT s P50 {row['ttft_p50_s']:.2f} P99 {row['ttft_p99_s']:.2f}, "
        f"ms P99 TPOT {row['tpot_p99_s'] * 1e3:.0f} ITL {row['itl_p99_s'] * 1e3:.0f}",
        flush=True,
    )
