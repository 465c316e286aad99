"""Ours beside the peers: same file, same threads, in turns, medians."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import Worker, WorkerError

ROOT = Path(__file__).parent
PROMPT, STEPS, STREAMS, STREAM_PROMPT, STREAM_STEPS = 512, 48, 32, 64, 24
SETTLE_S = 1.0
"""Pause before an engine's turn: threads of the one before may spin for a while."""


@dataclass(slots=True)
class Results:
    """Tokens a second by (engine, measure): one entry a round."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    loads: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, engine: str, measure: str) -> float | None:
        values = self.rates.get((engine, measure))
        return statistics.median(values) if values else None


def our_command() -> list[str]:
    return [sys.executable, "-m", "benchmarks.ours"]


def peer_commands(environment: Path) -> dict[str, list[str]]:
    """Peers whose environment exists; each is a script run by that environment's Python."""
    python = environment / "bin" / "python"
    if not python.exists():
        return {}
    scripts = {"llama.cpp": "llama_cpp_worker.py", "openvino": "openvino_worker.py"}
    return {name: [str(python), str(ROOT / "peers" / script)] for name, script in scripts.items()}


def tokens(count: int, vocabulary: int) -> list[int]:
    """Random ids, the same in every run."""
    most = min(vocabulary, 30_000)
    return [int(t) for t in np.random.default_rng(7).integers(100, most, count)]


def compare(path: Path, vocabulary: int, peers: Mapping[str, Sequence[str]], threads: int, rounds: int) -> Results:
    """Measures prefill, decode and a batch of streams on every engine, in turns and in both orders."""
    results = Results()
    with ExitStack() as stack:
        workers = []
        for name, command in {"twofold": our_command(), **peers}.items():
            worker = stack.enter_context(Worker(name, command, ROOT.parent))
            try:
                results.loads[name] = worker.ask(
                    op="load", path=str(path), threads=threads, context=1024, streams=STREAMS
                )
                workers.append(worker)
            except (WorkerError, OSError) as error:
                results.failures[name] = str(error)
        for turn in range(rounds + 1):
            for worker in workers if turn % 2 else reversed(workers):
                time.sleep(SETTLE_S)
                _measure(worker, results if turn else Results(), vocabulary)
    return results


def _measure(worker: Worker, results: Results, vocabulary: int) -> None:
    prompt = tokens(PROMPT, vocabulary)
    requests: dict[str, tuple[dict[str, Any], int]] = {
        "prefill": ({"op": "prefill", "tokens": prompt}, PROMPT),
        "decode": ({"op": "decode", "prompt": prompt[:64], "steps": STEPS}, 1),
        "batch": (
            {"op": "batch", "streams": STREAMS, "prompt": prompt[:STREAM_PROMPT], "steps": STREAM_STEPS},
            STREAMS,
        ),
    }
    for measure, (request, count) in requests.items():
        try:
            seconds = worker.ask(**request)
        except WorkerError as error:
            results.failures[f"{worker.name} {measure}"] = str(error)
            continue
        if seconds is not None:
            one = statistics.median(seconds) if isinstance(seconds, list) else seconds
            results.rates[worker.name, measure].append(count / one)
