"""``make bench``: ceilings of this machine first, then Twofold beside its peers, then what it costs to start.

The last line is JSON. Only ratios within one run count: the machine's speed changes from minute to minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import long_context, startup
from benchmarks.compare import PROMPT, STREAM_PROMPT, STREAM_STEPS, STREAMS, Results, compare, peer_commands
from benchmarks.machine import ceilings
from twofold.core.errors import TwofoldError
from twofold.cost.machine import MachineLimits
from twofold.cost.model import ModelCost
from twofold.formats.gguf import GGUFFile
from twofold.formats.sources import resolve
from twofold.host.cpu import read_cpu
from twofold.host.paths import CacheFolders
from twofold.models.read import read_model

ROOT = Path(__file__).parent.parent
MODELS = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b")
PARTS = ("compare", "long", "start")


def main() -> None:
    options = _options()
    threads = options.threads or read_cpu().usable_cores
    report: dict[str, Any] = {"threads": threads}
    limits = ceilings(threads)
    report["ceilings"] = _print_ceilings(limits)
    for name in options.models:
        try:
            path = resolve(name, cache=CacheFolders.of().create().models).path
        except TwofoldError as error:
            print(f"\n{name}: skipped, {error}")
            continue
        if "compare" in options.parts:
            report[name], limits = _compare(name, path, limits, options.rounds)
        if "long" in options.parts and name == options.models[0]:
            report["long_context"] = long_context.run(path, threads, limits)
        if "start" in options.parts and name == options.models[0]:
            report["start"] = startup.run(path, threads)
    print(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, help="names or paths (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="measured turns of each engine (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: one for each usable core")
    return parser.parse_args()


def _print_ceilings(limits: MachineLimits) -> dict[str, Any]:
    print(f"{limits.cpu}, {limits.threads} threads, {limits.isa}")
    reads = {f"{read.size >> 20} MiB": read.bytes_per_s / 1e9 for read in limits.reads}
    print("ceilings  read " + ", ".join(f"{size}: {speed:.1f} GB/s" for size, speed in reads.items()))
    int8, floating = limits.int8_macs_per_s / 1e9, limits.float_macs_per_s / 1e9
    print(f"          int8 {int8:.0f} GMAC/s, float32 {floating:.0f} GMAC/s", flush=True)
    return {"read_gb_s": reads, "int8_gmac_s": int8, "float_gmac_s": floating}


def _compare(name: str, path: Path, limits: MachineLimits, rounds: int) -> tuple[dict[str, Any], MachineLimits]:
    """The table of one model, and the ceilings after measuring them once more."""
    with GGUFFile.open(path) as file:
        spec, _ = read_model(file.metadata, file.tensors, file.data)
        cost = ModelCost.of(spec, file.tensors)
    peers = peer_commands(ROOT / ".venv-peers")
    if not peers:
        print("\nNo other engine is installed: `make peers` installs those that are compared.")
    results = compare(path, spec.vocab_size, peers, limits.threads, rounds)
    limits = ceilings(limits.threads, limits)
    floors = {
        "prefill": (_compute_floor(cost, limits, PROMPT), PROMPT),
        "decode": (cost.step_bytes([88], 2) / limits.read_speed(cost.weight_bytes), 1),
        "batch": (_batch_floor(cost, limits), STREAMS),
    }
    print(f"\n{name}  ({cost.weight_bytes / 1e6:.0f} MB a step, {cost.layers.total / 1e6:.0f} M multiply-adds a token)")
    table = {measure: _print_row(results, measure, count / floor) for measure, (floor, count) in floors.items()}
    for what, why in results.failures.items():
        print(f"  {what} failed: {why}")
    print(
        "  load s    " + ", ".join(f"{engine} {seconds:.2f}" for engine, seconds in results.loads.items()), flush=True
    )
    return {"rates": table, "load_s": results.loads, "failures": results.failures}, limits


def _compute_floor(cost: ModelCost, limits: MachineLimits, rows: int) -> float:
    macs = cost.prefill_macs(rows)
    return macs.integer / limits.int8_macs_per_s + macs.floating / limits.float_macs_per_s


def _batch_floor(cost: ModelCost, limits: MachineLimits) -> float:
    contexts = [STREAM_PROMPT + STREAM_STEPS // 2] * STREAMS
    macs = cost.step_macs(contexts)
    compute = macs.integer / limits.int8_macs_per_s + macs.floating / limits.float_macs_per_s
    return max(compute, cost.step_bytes(contexts, 2) / limits.read_speed(cost.weight_bytes))


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
    print(f"  {measure:9s} tok/s  " + ", ".join(cells), flush=True)
    return row


if __name__ == "__main__":
    main()
