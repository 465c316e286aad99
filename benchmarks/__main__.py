"""``make bench``: measures the limits of this machine, then each part, and prints both.

    compare        three models beside other engines: prompts, decode, a batch of streams        35 min
    growth         speed by context, batch and threads beside the limits, drawn in growth.svg      4 min
    start          first and later starts, with and without the file in memory; Python's share    2 min
    throughput     128 tokens in, 128 out, from 1 to 64 streams, beside other engines             6 min
    interference   a long prompt arrives while others generate                                    3 min
    goodput        objectives met on a mixed trace, live budget against a fixed one               3 min
    prefix         TTFT of cached prompts                                                         1 min
    queue          planning and committing a step while requests wait                            20 s
    server         HTTP overhead over the engine: throughput, TTFT, processor time                4 min
    servers        compared with other servers at rising rates                                   25 min
    overload       ten times the load: goodput, refusals, /health; recovery after kill -9          3 min
    kv-types       sessions, speed, KL and a hidden fact by type of keys and values              10 min
    kv-store       TTFT after a restart, and gaps between tokens beside loads from the disk       3 min
    speculation    tokens per second with and without drafts, by class of text                   10 min
    draft-model    tokens per second with a draft model, by class of text                         10 min
    compression    facts that a model finds in half of a text, and what that saves                5 min
    prediction     accuracy of times predicted by the cost model                                 5 min

``serving`` selects the five parts from ``throughput`` to ``queue``, ``http`` those from ``server`` to ``overload``,
``levers`` those from ``kv-types`` to ``compression``. All but ``compare``, ``start`` and ``prediction`` run on the
first model only, ``draft-model`` on models of its own. The last line is JSON; the exit status is 1 if a part failed.
Compare only ratios within one run: the machine's speed changes from minute to minute.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import (
    bookkeeping,
    compare,
    compression,
    draft_model,
    goodput,
    growth,
    interference,
    kv_store,
    kv_types,
    prediction,
    prefix,
    speculation,
    startup,
    throughput,
)
from benchmarks.http import overhead, overload, servers
from benchmarks.setting import Setting
from benchmarks.worker import WorkerError
from twofold.backends.cpu.backend import CpuBackend
from twofold.bench.phases.report import machine_lines
from twofold.core.errors import TwofoldError
from twofold.core.limits import MachineLimits
from twofold.formats.fetch.sources import resolve
from twofold.host.paths import CacheFolders

MODELS = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b")
SERVING: Mapping[str, Callable[[Setting], Any]] = {
    "throughput": throughput.run,
    "interference": interference.run,
    "goodput": lambda setting: goodput.run(setting, _data()),
    "prefix": prefix.run,
    "queue": bookkeeping.run,
}
HTTP: Mapping[str, Callable[[Setting], Any]] = {
    "server": overhead.run,
    "servers": servers.run,
    "overload": overload.run,
}
LEVERS: Mapping[str, Callable[[Setting], Any]] = {
    "kv-types": kv_types.run,
    "kv-store": kv_store.run,
    "speculation": speculation.run,
    "draft-model": draft_model.run,
    "compression": compression.run,
}
GROUPS: Mapping[str, Mapping[str, Callable[[Setting], Any]]] = {"serving": SERVING, "http": HTTP, "levers": LEVERS}
PARTS: Mapping[str, Callable[[Setting], Any]] = {
    "compare": compare.run,
    "growth": growth.run,
    "start": startup.run,
    **SERVING,
    **HTTP,
    **LEVERS,
    "prediction": prediction.run,
}
EVERY_MODEL = ("compare", "start", "prediction")


def main() -> int:
    signal.signal(
        signal.SIGTERM, lambda number, _frame: sys.exit(128 + number)
    )  # lets context managers stop their servers
    options = _options()
    limits = CpuBackend(threads=options.threads).probe().now()
    report: dict[str, Any] = {"threads": limits.threads, "ceilings": _print_ceilings(limits)}
    for name in options.models:
        try:
            path = resolve(name, cache=CacheFolders.of().create().models).path
        except TwofoldError as error:
            print(f"\n{name}: skipped, {error}")
            continue
        setting = Setting.of(name, path, limits, options.rounds, quick=options.quick)
        parts = [part for part in _chosen(options.parts) if part in EVERY_MODEL or name == options.models[0]]
        report[name] = _run(setting, parts)
    print(json.dumps(report))
    return int(any("failed" in part for name in options.models for part in report.get(name, {}).values()))


def _run(setting: Setting, parts: list[str]) -> dict[str, Any]:
    """Runs every part against the best ceilings measured so far. A part that fails does not stop the others."""
    report: dict[str, Any] = {}
    for part in parts:
        try:
            report[part] = PARTS[part](setting)
        except (WorkerError, TwofoldError) as error:
            report[part] = {"failed": str(error)}
            print(f"\n{part} failed: {error}", flush=True)
        setting = setting.remeasured()
    return report


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, help="names or paths (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, *GROUPS], default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="maximum rounds for each engine (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of each engine (default: one for each usable core)")
    parser.add_argument("--quick", action="store_true", help="run tiny sizes, only to check that the parts work")
    return parser.parse_args()


def _chosen(parts: list[str]) -> list[str]:
    """The selected parts, in the order of ``PARTS``."""
    selected = {*parts, *(part for group, members in GROUPS.items() if group in parts for part in members)}
    return [part for part in PARTS if part in selected]


def _data() -> Path | None:
    """The folder of reference data, or None if ``TWOFOLD_TEST_DATA`` is not set."""
    folder = os.environ.get("TWOFOLD_TEST_DATA")
    return None if folder is None else Path(folder)


def _print_ceilings(limits: MachineLimits) -> dict[str, Any]:
    print("\n".join(machine_lines(limits)), flush=True)
    return {
        "read_gb_s": {f"{read.size >> 20} MiB": read.bytes_per_s / 1e9 for read in limits.reads},
        "int8_gmac_s": limits.int8_macs_per_s / 1e9,
        "float_gmac_s": limits.float_macs_per_s / 1e9,
    }


if __name__ == "__main__":
    sys.exit(main())
