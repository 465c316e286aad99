"""Compares Twofold with other engines on the same file with the same threads: median rates of alternating rounds."""

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

from benchmarks.figures import random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker, WorkerError
from twofold.bench.phases.cases import Decode, Prefill

ROOT = Path(__file__).parent
PROMPT, DECODE_PROMPT, STEPS, STREAMS, STREAM_PROMPT, STREAM_STEPS = 512, 64, 48, 32, 64, 24
LONG_PROMPTS, LONG_STEPS, LONG_ROUNDS = (4096, 7936), 16, 1
SHORT_CONTEXT, LONG_CONTEXT = 1024, 8192
SETTLE_S = 1.0
"""Pause before each engine's turn: threads of the previous engine may still spin."""


@dataclass(slots=True)
class Results:
    """``rates``: tokens per second by (engine, measure), one entry per round. ``loads``: seconds by engine."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    loads: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, engine: str, measure: str) -> float | None:
        values = self.rates.get((engine, measure))
        return statistics.median(values) if values else None


def run(setting: Setting) -> dict[str, Any]:
    """Measures one model and prints its table. The ceilings are measured again after the engines."""
    peers = peer_commands(ROOT.parent)
    if not peers:
        print("\nNo other engine is installed: `make peers` installs them.")
    rounds = 1 if setting.quick else setting.rounds
    results = compare(setting.path, setting.vocabulary, peers, setting.threads, rounds)
    long = [] if setting.quick else [n for n in LONG_PROMPTS if n + LONG_STEPS < min(setting.context, LONG_CONTEXT)]
    compare_long(setting, peers, long, results)
    setting = setting.remeasured()
    floors = {
        "prefill": (setting.floor(Prefill(PROMPT)), PROMPT),
        "decode": (setting.floor(Decode(1, DECODE_PROMPT, STEPS)), 1),
        "batch": (setting.floor(Decode(STREAMS, STREAM_PROMPT, STREAM_STEPS)), STREAMS),
        **{f"prefill {n}": (setting.floor(Prefill(n)), n) for n in long},
        **{f"decode {n}": (setting.floor(Decode(1, n, LONG_STEPS)), 1) for n in long},
    }
    cost = setting.ceilings.steps.cost
    size = f"{cost.weight_bytes() / 1e6:.0f} MB a step, {cost.row_flops / 2e6:.0f} M multiply-adds a token"
    print(f"\n{setting.name}  ({size})")
    table = {measure: _print_row(results, measure, count / floor) for measure, (floor, count) in floors.items()}
    for what, reason in results.failures.items():
        print(f"  {what} failed: {reason}")
    loads = ", ".join(f"{engine} {seconds:.2f}" for engine, seconds in results.loads.items())
    print(f"  load s    {loads}", flush=True)
    if "llama.cpp" in peers:
        print("  llama.cpp is built for this processor without AMX (`make peers`).", flush=True)
    return {"rates": table, "load_s": results.loads, "failures": results.failures}


def _print_row(results: Results, measure: str, limit: float) -> dict[str, Any]:
    engines = {engine: results.median(engine, measure) for engine, m in results.rates if m == measure}
    ours = engines.get("twofold")
    row: dict[str, Any] = {"limit_tok_s": limit, **engines}
    cells = []
    for engine, rate in engines.items():
        if rate is None or ours is None:
            continue
        other = "" if engine == "twofold" else f" (ours {ours / rate:.2f}×)"
        cells.append(f"{engine} {rate:,.1f}{other}")
    if ours is not None:
        row["share_of_limit"] = ours / limit
        cells.append(f"limit {limit:,.0f} (ours {ours / limit:.0%})")
    print(f"  {measure:12s} tok/s  " + ", ".join(cells), flush=True)
    return row


def our_command() -> list[str]:
    return [sys.executable, "-m", "benchmarks.ours"]


def peer_commands(root: Path) -> dict[str, list[str]]:
    """The worker command of each peer whose environment exists in ``root``."""
    peers, vllm = (root / name / "bin" / "python" for name in (".venv-peers", ".venv-vllm"))
    found = {
        "llama.cpp": (peers, "llama_cpp_worker.py", peers),
        "ik_llama.cpp": (Path(sys.executable), "ik_llama_worker.py", root / ".venv-peers" / "ik_llama"),
        "openvino": (peers, "openvino_worker.py", peers),
        "vllm": (vllm, "vllm_worker.py", vllm),
    }
    return {
        name: [str(python), str(ROOT / "peers" / script)]
        for name, (python, script, needed) in found.items()
        if needed.exists()
    }


def compare(path: Path, vocabulary: int, peers: Mapping[str, Sequence[str]], threads: int, rounds: int) -> Results:
    """Measures prefill, decode and batched decode on every engine, in rounds of alternating order."""
    results = Results()
    with ExitStack() as stack:
        workers = _load(stack, path, peers, threads, SHORT_CONTEXT, STREAMS, results)
        for turn in range(rounds + 1):
            for worker in workers if turn % 2 else reversed(workers):
                time.sleep(SETTLE_S)
                _measure(worker, results if turn else Results(), vocabulary)
    return results


def compare_long(
    setting: Setting, peers: Mapping[str, Sequence[str]], prompts: Sequence[int], results: Results
) -> None:
    """Measures long prompts, and decode after them, on every engine."""
    with ExitStack() as stack:
        workers = _load(stack, setting.path, peers, setting.threads, LONG_CONTEXT, 1, results) if prompts else []
        for count in prompts:
            prompt = random_tokens(count, setting.vocabulary, count)
            for worker in [w for _ in range(LONG_ROUNDS) for w in workers]:
                time.sleep(SETTLE_S)
                try:
                    found = worker.ask(op="long", prompt=prompt, steps=LONG_STEPS)
                except WorkerError as error:
                    results.failures[f"{worker.name} {count}"] = str(error)
                    continue
                results.rates[worker.name, f"prefill {count}"].append(count / found["prompt"])
                results.rates[worker.name, f"decode {count}"].append(1 / statistics.median(found["steps"]))


def _load(
    stack: ExitStack,
    path: Path,
    peers: Mapping[str, Sequence[str]],
    threads: int,
    context: int,
    streams: int,
    results: Results,
) -> list[Worker]:
    """The engines that loaded the model, ours first."""
    workers = []
    for name, command in {"twofold": our_command(), **peers}.items():
        worker = stack.enter_context(Worker(name, command, ROOT.parent))
        try:
            seconds = worker.ask(op="load", path=str(path), threads=threads, context=context, streams=streams)
            results.loads.setdefault(name, seconds)
            workers.append(worker)
        except (WorkerError, OSError) as error:
            results.failures[name] = str(error)
    return workers


def _measure(worker: Worker, results: Results, vocabulary: int) -> None:
    prompt = random_tokens(PROMPT, vocabulary, 7)
    requests: dict[str, tuple[dict[str, Any], int]] = {
        "prefill": ({"op": "prefill", "tokens": prompt}, PROMPT),
        "decode": ({"op": "decode", "prompt": prompt[:DECODE_PROMPT], "steps": STEPS}, 1),
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
