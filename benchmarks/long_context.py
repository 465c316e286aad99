"""Cost of prefill and decode as the context grows, beside what the formulas of ``twofold.cost.model`` say."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.compare import ROOT, our_command, tokens
from benchmarks.worker import Worker
from twofold.cost.machine import MachineLimits
from twofold.cost.model import ModelCost
from twofold.formats.gguf import GGUFFile
from twofold.models.read import read_model

CONTEXTS = (512, 1024, 2048, 4096, 7936)
STEPS = 24
BAR = 40


def run(path: Path, threads: int, limits: MachineLimits) -> list[dict[str, float]]:
    """Prints a row and two bars for each context: measured, and the formula fitted through the first row."""
    with GGUFFile.open(path) as file:
        spec, _ = read_model(file.metadata, file.tensors, file.data)
        cost = ModelCost.of(spec, file.tensors)
    contexts = [c for c in CONTEXTS if c + STEPS + 1 <= spec.context_length]
    print("\nlong context: prefill s and decode ms, measured and by the formula scaled to the first row")
    rows: list[dict[str, float]] = []
    with Worker("twofold", our_command(), ROOT.parent) as worker:
        worker.ask(op="load", path=str(path), threads=threads, context=spec.context_length, streams=1)
        worker.ask(op="prefill", tokens=tokens(512, spec.vocab_size))
        for context in contexts:
            prompt = tokens(context, spec.vocab_size)
            prefill = min(worker.ask(op="prefill", tokens=prompt) for _ in range(2))
            decode = statistics.median(worker.ask(op="decode", prompt=prompt, steps=STEPS))
            rows.append(
                {"context": context, "prefill_s": prefill, "decode_s": decode, **_floors(cost, limits, context)}
            )
    for row in rows:
        _print(row, rows[0], rows[-1])
    return rows


def _floors(cost: ModelCost, limits: MachineLimits, context: int) -> dict[str, float]:
    macs = cost.prefill_macs(context)
    return {
        "prefill_floor_s": macs.integer / limits.int8_macs_per_s + macs.floating / limits.float_macs_per_s,
        "decode_floor_s": cost.step_bytes([context], 2) / limits.read_speed(cost.weight_bytes),
    }


def _print(row: dict[str, Any], first: dict[str, float], last: dict[str, float]) -> None:
    for phase, unit, scale in (("prefill", "s", 1.0), ("decode", "ms", 1e3)):
        measured = row[f"{phase}_s"]
        formula = row[f"{phase}_floor_s"] * first[f"{phase}_s"] / first[f"{phase}_floor_s"]
        top = max(last[f"{phase}_s"], last[f"{phase}_floor_s"] * first[f"{phase}_s"] / first[f"{phase}_floor_s"])
        bar = "█" * max(1, round(BAR * measured / top))
        mark = "·" * max(1, round(BAR * formula / top))
        share = row[f"{phase}_floor_s"] / measured
        print(f"  {row['context']:5d} {phase:7s} {measured * scale:9.3f} {unit:2s} {bar}  ({share:.0%} of the limit)")
        print(f"        formula {formula * scale:9.3f} {unit:2s} {mark}", flush=True)
