"""TTFT of prompts with a cached prefix: conversations after one system prompt, one request at a time.

The first turn of the first conversation misses. First turns of the others hit the system prompt, later turns the whole
conversation so far. The same requests run again without a prefix cache for comparison.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.compare import ROOT, our_command
from benchmarks.figures import median, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker
from twofold.bench.phases.cases import Prefill, Prefix

GOAL = 1 / 8
MAX_ROUNDS = 3
KINDS = ("miss", "hit: system prompt", "hit: later turn")


@dataclass(frozen=True, slots=True)
class Sizes:
    system: int
    user: int
    answer: int
    conversations: int
    turns: int


FULL = Sizes(1_500, 32, 24, 4, 4)
QUICK = Sizes(150, 8, 4, 2, 2)


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    whole = sizes.system + sizes.user
    miss, hit = setting.floor(Prefill(whole)), setting.floor(Prefix(whole, sizes.user))
    print(f"\nprefix  {sizes.conversations} conversations of {sizes.turns} turns after {sizes.system} common tokens")
    print(f"  limit: miss {miss * 1e3:.0f} ms, hit {hit * 1e3:.1f} ms, {hit / miss:.3f} of it", flush=True)
    found: dict[bool, dict[str, list[float]]] = {}
    for cached in (True, False):
        found[cached] = defaultdict(list)
        with Worker("twofold", our_command(), ROOT.parent) as worker:
            _load(worker, setting, sizes, cached=cached)
            for turn in range(min(setting.rounds, MAX_ROUNDS) if cached else 1):
                _converse(worker, setting, sizes, found[cached], 1_000 * turn)
    table = {cached: {kind: median(found[cached][kind]) for kind in KINDS} for cached in found}
    for kind in KINDS:
        ratio = table[True][kind] / table[True]["miss"]
        print(
            f"  {kind:19s} TTFT {table[True][kind] * 1e3:7.1f} ms, {ratio:.3f} of a miss; "
            f"without a cache {table[False][kind] * 1e3:7.1f} ms",
            flush=True,
        )
    ratio = median([*found[True][KINDS[1]], *found[True][KINDS[2]]]) / table[True]["miss"]
    print(f"  a hit takes {ratio:.3f} of a miss (goal ≤ {GOAL:.3f})", flush=True)
    return {"hit_over_miss": ratio, "limit": hit / miss, "cached_s": table[True], "uncached_s": table[False]}


def _load(worker: Worker, setting: Setting, sizes: Sizes, *, cached: bool) -> None:
    history = sizes.turns * (sizes.user + sizes.answer)
    worker.ask(
        op="load",
        path=str(setting.path),
        threads=setting.threads,
        context=sizes.system + history + 64,
        streams=8,
        options={"enable_prefix_caching": cached},
    )
    worker.ask(op="prefill", tokens=random_tokens(sizes.user, setting.vocabulary, 99))


def _converse(worker: Worker, setting: Setting, sizes: Sizes, found: dict[str, list[float]], seed: int) -> None:
    """Runs all conversations after a new system prompt."""
    system = random_tokens(sizes.system, setting.vocabulary, seed)
    for conversation in range(sizes.conversations):
        history = list(system)
        for turn in range(sizes.turns):
            history += random_tokens(sizes.user, setting.vocabulary, seed + 10 * conversation + turn + 1)
            served = worker.ask(op="drive", arrivals=[{"at": 0.0, "prompt": history, "count": sizes.answer}])[0]
            history += served["tokens"]
            kind = KINDS[2] if turn else KINDS[1] if conversation else KINDS[0]
            found[kind].append(served["ttft"])
