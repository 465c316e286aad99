"""Gain of delivering the results of the last step and preparing the next one while a step computes.

Tokens are detokenised, since that is part of the overlapped work. Both settings take turns, each in its own process.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from benchmarks.compare import ROOT, SETTLE_S, our_command
from benchmarks.figures import medians, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker
from twofold.bench.phases.cases import Decode

PROMPT = 32
MODES = {"overlapped": {"overlap": True}, "in turn": {"overlap": False}}


def run(setting: Setting) -> dict[str, Any]:
    count, streams = (6, (1, 4)) if setting.quick else (64, (1, 8, 32))
    print(f"\noverlap  results delivered while the next step computes, {count} detokenised tokens")
    floors = {n: setting.floor(Decode(n, PROMPT, count)) for n in streams}
    print("  limit of a step, ms: " + ", ".join(f"{n}: {floor * 1e3:.2f}" for n, floor in floors.items()), flush=True)
    rows: dict[tuple[int, str], list[dict[str, float]]] = defaultdict(list)
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, our_command(), ROOT.parent)) for name in MODES}
        for name, worker in workers.items():
            worker.ask(
                op="load",
                path=str(setting.path),
                threads=setting.threads,
                context=2 * (PROMPT + count),
                streams=max(streams),
                options=MODES[name],
            )
        for turn in range(setting.rounds + 1):
            for name in list(workers) if turn % 2 else reversed(workers):
                time.sleep(SETTLE_S)
                for n in streams:
                    prompts = [random_tokens(PROMPT, setting.vocabulary, i) for i in range(n)]
                    found = workers[name].ask(op="steps", prompts=prompts, count=count, text=True)
                    if turn:
                        rows[n, name].append(found)
    return {str(n): _print(n, {name: medians(rows[n, name]) for name in MODES}, count) for n in streams}


def _print(streams: int, found: dict[str, dict[str, float]], count: int) -> dict[str, Any]:
    rates = {name: streams * count / row["whole"] for name, row in found.items()}
    gain = found["in turn"]["decode_s"] / found["overlapped"]["decode_s"]
    cells = (
        f"{name} {row['decode_s'] * 1e3:.2f} ms ({row['decode_outside']:.1%} not model), {rates[name]:,.0f} tok/s"
        for name, row in found.items()
    )
    print(f"  {streams:3d} streams  " + "; ".join(cells) + f"; a step is {gain:.3f}× faster", flush=True)
    return {"step_gain": gain, "tok_s": rates, "steps": found}
