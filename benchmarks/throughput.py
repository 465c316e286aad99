"""Output tokens per second of 1 to 64 simultaneous streams, prefill included, compared with other engines.

Every engine receives the same random prompts, as token ids, and generates the same number of tokens for each. The time
runs from the submission of all requests to the last token. llama.cpp runs the same file, and again in Q4_0, for which
it has its fastest kernels; vLLM runs floats. Engines take turns. The comparison counts at ``GOAL_STREAMS``; with other
numbers of streams the other engines run once.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare import ROOT, SETTLE_S, our_command
from benchmarks.figures import bar, median, medians, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker, WorkerError
from twofold.bench.phases.cases import Decode

GOAL_STREAMS = 32
GOAL_RATIO = 2.0
GOAL_OVERHEAD = 0.08
MAX_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    prompt: int
    answer: int
    ours: tuple[int, ...]
    others: tuple[int, ...]

    def prompts(self, streams: int, vocabulary: int) -> list[list[int]]:
        return [random_tokens(self.prompt, vocabulary, seed) for seed in range(streams)]


FULL = Sizes(128, 128, (1, 2, 4, 8, 16, 32, 64), (1, 8, 32, 64))
QUICK = Sizes(16, 6, (1, 32), (1, 32))


@dataclass(frozen=True, slots=True)
class Contestant:
    """An engine: the command of its worker, and its additional arguments of ``load``."""

    name: str
    command: list[str]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.name == "twofold"


def contestants(root: Path) -> list[Contestant]:
    """Twofold, then the other engines whose environments exist in ``root``."""
    found = [Contestant("twofold", our_command())]
    llama, vllm = (root / name / "bin" / "python" for name in (".venv-peers", ".venv-vllm"))
    peers = ROOT / "peers"
    if llama.exists():
        command = [str(llama), str(peers / "llama_cpp_worker.py")]
        found += [Contestant("llama.cpp", command), Contestant("llama.cpp-q4_0", command, {"q4_0": True})]
    if vllm.exists():
        found.append(Contestant("vllm", [str(vllm), str(peers / "vllm_worker.py")]))
    return found


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    print(f"\nthroughput  {setting.name}, {sizes.prompt} tokens in, {sizes.answer} out, simultaneous requests")
    limits = {streams: _limit(setting, sizes, streams) for streams in sizes.ours}
    print("  limit tok/s       " + ", ".join(f"{n}: {limit['tok_s']:,.0f}" for n, limit in limits.items()), flush=True)
    rates, ours, failures = _measure(setting, sizes)
    table = {name: {streams: median(values) for streams, values in rows.items()} for name, rows in rates.items()}
    report: dict[str, Any] = {"tok_s": table, "limits": limits, "failures": failures, **ours}
    for name, row in table.items():
        print(f"  {name:15s}   " + ", ".join(f"{n}: {rate:,.1f}" for n, rate in row.items()))
    for what, reason in failures.items():
        print(f"  {what} failed: {reason}")
    if "twofold" in table:
        _print_ours(report, sizes)
    return report


def _limit(setting: Setting, sizes: Sizes, streams: int) -> dict[str, float]:
    """Limits of the cost model: output tokens per second, and seconds of the middle decode step."""
    seconds = setting.serve_floor(streams, sizes.prompt, sizes.answer)
    return {
        "tok_s": streams * sizes.answer / seconds,
        "tpot_s": setting.floor(Decode(streams, sizes.prompt, sizes.answer)),
    }


def _measure(
    setting: Setting, sizes: Sizes
) -> tuple[dict[str, dict[int, list[float]]], dict[str, Any], dict[str, str]]:
    """Rates by engine and streams, the step times of Twofold, and failures by engine."""
    rates: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    steps: dict[int, list[dict[str, float]]] = defaultdict(list)
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        workers = _start(setting, sizes, stack, failures)
        for turn in range(min(setting.rounds, MAX_ROUNDS)):
            for one, worker in workers if turn % 2 == 0 else reversed(workers):
                for streams in _streams(sizes, one, turn):
                    time.sleep(SETTLE_S)
                    asked = {"prompts": sizes.prompts(streams, setting.vocabulary), "count": sizes.answer}
                    try:
                        found = worker.ask(op="steps" if one.is_ours else "generate", **asked)
                    except WorkerError as error:
                        failures[f"{one.name} {streams}"] = str(error)
                        continue
                    if one.is_ours:
                        steps[streams].append(found)
                    seconds = found["whole"] if one.is_ours else found
                    rates[one.name][streams].append(streams * sizes.answer / seconds)
    return rates, {"steps": {streams: medians(rows) for streams, rows in steps.items()}}, failures


def _start(
    setting: Setting, sizes: Sizes, stack: ExitStack, failures: dict[str, str]
) -> list[tuple[Contestant, Worker]]:
    """The engines that loaded the model, after a warm-up."""
    workers = []
    most, length = max(sizes.ours), sizes.prompt + sizes.answer
    for one in contestants(ROOT.parent):
        worker = stack.enter_context(Worker(one.name, one.command, ROOT.parent))
        try:
            path = str(setting.path)
            seconds = worker.ask(
                op="load", path=path, threads=setting.threads, context=2 * length, streams=most, **one.options
            )
            worker.ask(op="generate", prompts=sizes.prompts(4, setting.vocabulary), count=4)
            print(f"  {one.name} loaded in {seconds:.1f} s", file=sys.stderr, flush=True)
            workers.append((one, worker))
        except (WorkerError, OSError) as error:
            failures[one.name] = str(error)
    return workers


def _streams(sizes: Sizes, one: Contestant, turn: int) -> tuple[int, ...]:
    if one.is_ours:
        return sizes.ours
    return sizes.others if turn == 0 else (GOAL_STREAMS,)


def _print_ours(report: dict[str, Any], sizes: Sizes) -> None:
    table, limits, steps = report["tok_s"], report["limits"], report["steps"]
    print("  streams   tok/s: ours █, the cost model's limit ·          time of a step: ours, limit")
    top = max(limit["tok_s"] for limit in limits.values())
    for streams in sizes.ours:
        rate, step, limit = table["twofold"][streams], steps[streams]["decode_s"], limits[streams]
        share = f"({rate / limit['tok_s']:.0%})"
        print(f"  {streams:5d} {rate:9,.0f} {bar(rate, top):40s} {step * 1e3:8.2f} ms {share}")
        print(f"        {limit['tok_s']:9,.0f} {bar(limit['tok_s'], top, '·'):40s} {limit['tpot_s'] * 1e3:8.2f} ms")
    others = {name: row[GOAL_STREAMS] for name, row in table.items() if name != "twofold" and GOAL_STREAMS in row}
    if others:
        best = max(others, key=others.__getitem__)
        report["over_best"] = table["twofold"][GOAL_STREAMS] / others[best]
        print(
            f"  {GOAL_STREAMS} streams: {report['over_best']:.2f}× of {best}, the fastest other (goal ≥ {GOAL_RATIO}×)"
        )
    report["overhead"] = steps[GOAL_STREAMS]["decode_outside"]
    print(
        f"  overhead at {GOAL_STREAMS} streams: {report['overhead']:.1%} of a step (goal < {GOAL_OVERHEAD:.0%})",
        flush=True,
    )
