"""Effect of a long prompt on the ITL of generating sequences, and of those on the TTFT of the prompt.

In each round the prompt runs alone, then ``streams`` sequences generate, then a prompt of the same length arrives.
Policies take turns: a fixed token budget, and the live budget with several TPOT targets, given as multiples of the
undisturbed P99 ITL of these sequences.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.compare import ROOT, our_command
from benchmarks.figures import median, medians, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker
from twofold.bench.phases.cases import Decode, Prefill
from twofold.core.ranks import nearest_rank

GOAL_ITL, GOAL_TTFT = 1.5, 1.6
MAX_ROUNDS = 2
FIXED_ROWS = 512


@dataclass(frozen=True, slots=True)
class Sizes:
    streams: int
    stream_prompt: int
    prompt: int
    steps: int
    targets: tuple[float, ...]


FULL = Sizes(8, 128, 4_096, 150, (1.5, 2.0, 3.0))
QUICK = Sizes(2, 16, 300, 8, (1.5,))
ROOM = 1_200
"""Context reserved for tokens that sequences generate while the prompt is computed."""


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    print(f"\ninterference  {sizes.prompt} tokens arrive while {sizes.streams} sequences generate")
    alone = setting.floor(Prefill(sizes.prompt))
    step = setting.floor(Decode(sizes.streams, sizes.stream_prompt, sizes.steps))
    print(f"  limit: prompt alone {alone:.2f} s, step of {sizes.streams} rows {step * 1e3:.2f} ms", flush=True)
    turns: dict[str, list[dict[str, float]]] = defaultdict(list)
    with Worker("twofold", our_command(), ROOT.parent) as worker:
        usual = _usual_itl(worker, setting, sizes)
        for turn in range(min(setting.rounds, MAX_ROUNDS)):
            for number, (name, options) in enumerate(_policies(usual, sizes).items()):
                _load(worker, setting, sizes, options)
                turns[name].append(_turn(worker, setting, sizes, 100 * turn + 10 * number))
    table = {name: medians(rows) for name, rows in turns.items()}
    print(f"  P99 ITL undisturbed {usual * 1e3:.1f} ms; goals: P99 ≤ {GOAL_ITL}× of it, TTFT ≤ {GOAL_TTFT}× of alone")
    for name, row in table.items():
        _print(name, row)
    return {"usual_p99_itl_s": usual, "policies": table, "limit": {"alone_s": alone, "step_s": step}}


def _policies(usual: float, sizes: Sizes) -> dict[str, dict[str, Any]]:
    live = {
        f"live {multiple:g}×": {
            "token_budget": "live",
            "tpot_target_ms": 1e3 * multiple * usual,
            "itl_limit_ms": 1e3 * multiple * usual,
        }
        for multiple in sizes.targets
    }
    return {f"fixed {FIXED_ROWS}": {"token_budget": "fixed", "max_num_batched_tokens": FIXED_ROWS}, **live}


def _usual_itl(worker: Worker, setting: Setting, sizes: Sizes) -> float:
    """The undisturbed P99 ITL in seconds, the unit of the TPOT targets: the median of three runs."""
    _load(worker, setting, sizes, {})
    tries = [_interfere(worker, setting, sizes, random_tokens(8, setting.vocabulary, 1)) for _ in range(3)]
    return median(nearest_rank(sorted(found["before"]), 0.99) for found in tries)


def _load(worker: Worker, setting: Setting, sizes: Sizes, options: dict[str, Any]) -> None:
    context = min(setting.context, sizes.prompt + ROOM)
    worker.ask(
        op="load",
        path=str(setting.path),
        threads=setting.threads,
        context=context,
        streams=2 * sizes.streams,
        options=options,
    )


def _turn(worker: Worker, setting: Setting, sizes: Sizes, seed: int) -> dict[str, float]:
    late = random_tokens(sizes.prompt, setting.vocabulary, seed + 1)
    _interfere(worker, setting, sizes, late[:256])  # lets the live budget learn from such steps
    alone = worker.ask(op="drive", arrivals=[{"at": 0.0, "prompt": late, "count": 1}])[0]["ttft"]
    found = _interfere(worker, setting, sizes, late)
    before, during = (nearest_rank(sorted(found[name]), 0.99) for name in ("before", "during"))
    return {
        "before_p50_s": nearest_rank(sorted(found["before"]), 0.5),
        "before_p99_s": before,
        "during_p50_s": nearest_rank(sorted(found["during"]), 0.5),
        "during_p99_s": during,
        "itl_ratio": during / before,
        "alone_s": alone,
        "ttft_s": found["ttft"],
        "ttft_ratio": found["ttft"] / alone,
    }


def _interfere(worker: Worker, setting: Setting, sizes: Sizes, late: list[int]) -> Any:
    prompts = [random_tokens(sizes.stream_prompt, setting.vocabulary, 50 + i) for i in range(sizes.streams)]
    return worker.ask(op="interfere", prompts=prompts, late=late, steps=sizes.steps)


def _print(name: str, row: dict[str, float]) -> None:
    itl, ttft = row["itl_ratio"], row["ttft_ratio"]
    print(
        f"  {name:10s}  ITL ms P50 {row['before_p50_s'] * 1e3:.1f} → {row['during_p50_s'] * 1e3:.1f}, "
        f"P99 {row['before_p99_s'] * 1e3:.1f} → {row['during_p99_s'] * 1e3:.1f} ({itl:.2f}×); "
        f"TTFT s alone {row['alone_s']:.2f}, beside them {row['ttft_s']:.2f} ({ttft:.2f}×)",
        flush=True,
    )
