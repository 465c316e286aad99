"""The prefix cache on real traffic and at large sizes: ``python -m benchmarks.prefix_replay [--trace …]``.

Replays a trace whose requests list the hashes of their 512-token prefix blocks (Mooncake, FAST'25), with one cache
block of synthetic tokens for each, and prints the hit rate beside that of an ideal LRU of the same size; then the cost
of matching among 10⁵ cached blocks, and of the cache's work in a decode step.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from twofold.engine.kv.manager import BlockManager, GroupSize

BLOCK = 16
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
CACHED = 100_000
PROMPT = 1_500
REPEATS = 200


def main() -> None:
    options = _options()
    if options.trace:
        requests = read_trace(options.trace)
        print(f"{len(requests)} requests, {len({i for ids in requests for i in ids})} different prefix blocks")
        print(f"{'blocks':>8} {'ours':>8} {'ideal LRU':>10} {'seconds':>8}")
        for size in SIZES:
            began = time.perf_counter()
            ours = replay(requests, size)
            seconds = time.perf_counter() - began
            print(f"{size:8} {ours:8.2%} {ideal_lru(requests, size):10.2%} {seconds:8.2f}")
    for name, fill in (("branching", fill_branching), ("one block an edge", fill_single), ("flat root", fill_flat)):
        print(f"matching {PROMPT} tokens among {CACHED} blocks, {name}: {matching_cost(fill) * 1e6:.1f} µs", flush=True)
    for name, cost in decode_costs().items():
        print(f"{name}: {cost * 1e6:.2f} µs")


def read_trace(path: Path) -> list[list[int]]:
    """The prefix block hashes of each request, in order of arrival."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


def replay(requests: Iterable[Sequence[int]], blocks: int) -> float:
    """Hit rate of the prefix cache, as a share of all prefix blocks, over sequential requests."""
    manager = BlockManager([GroupSize(None, blocks)], BLOCK)
    asked = found = 0
    for now, ids in enumerate(requests):
        fitting = ids[: blocks - 1]
        tokens = array("i", [identity for identity in fitting for _ in range(BLOCK)])
        tokens.append(-1)
        holding = manager.open(tokens, "", now, most=len(tokens) - 1)
        asked += len(ids)
        found += holding.cached // BLOCK
        if manager.grow(holding, holding.cached, len(tokens), now):
            manager.publish(holding, tokens, len(tokens), now)
        manager.take_moves()
        manager.close(holding, now)
    return found / asked


def ideal_lru(requests: Iterable[Sequence[int]], blocks: int) -> float:
    """Hit rate of an LRU of block hashes; a request touches its blocks from the last to the first."""
    cache: OrderedDict[int, None] = OrderedDict()
    asked = found = 0
    for ids in requests:
        asked += len(ids)
        found += next((index for index, identity in enumerate(ids) if identity not in cache), len(ids))
        for identity in reversed(ids[:blocks]):
            cache[identity] = None
            cache.move_to_end(identity)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return found / asked


def fill_branching(manager: BlockManager) -> array[int]:
    """Conversations under 50 system prompts that share a prefix of random length and then diverge."""
    rng = random.Random(1)
    systems = [_random_tokens(rng, 1_024) for _ in range(50)]
    turns: list[array[int]] = []
    while min(manager.free) > 400:
        base = rng.choice(turns) if turns and rng.random() < 0.6 else rng.choice(systems)
        tokens = base[: rng.randint(len(base) // 2, len(base))] + _random_tokens(rng, rng.randint(50, 800))
        turns.append(tokens[:4_000])
        _insert(manager, turns[-1])
    return next(tokens for tokens in reversed(turns) if len(tokens) > PROMPT)[:PROMPT]


def fill_single(manager: BlockManager) -> array[int]:
    """The worst case: every block on the prompt's path has a sibling, so no edge holds more than one block."""
    rng = random.Random(2)
    prompt = _random_tokens(rng, PROMPT)
    for place in range(PROMPT // BLOCK):
        _insert(manager, prompt[: place * BLOCK] + _random_tokens(rng, BLOCK))
    _insert(manager, prompt)
    while min(manager.free) > 400:
        _insert(manager, prompt[: rng.randint(0, PROMPT // BLOCK) * BLOCK] + _random_tokens(rng, BLOCK))
    return prompt


def fill_flat(manager: BlockManager) -> array[int]:
    """One node with all blocks as children that share their first tokens; the prompt matches only those."""
    rng = random.Random(3)
    start = _random_tokens(rng, 4)
    while min(manager.free) > 400:
        _insert(manager, start + _random_tokens(rng, BLOCK - 4))
    return start + _random_tokens(rng, PROMPT - 4)


def matching_cost(fill: Callable[[BlockManager], array[int]]) -> float:
    """Median seconds to match a prompt in a tree of ``CACHED`` blocks."""
    manager = BlockManager([GroupSize(None, CACHED + 400)], BLOCK)
    prompt = fill(manager)
    prompt.append(7)
    return _median(lambda: manager.matched(prompt, ""))


def decode_costs() -> dict[str, float]:
    """Seconds of each cache operation of a decode step, and of opening and closing a cached prompt."""
    manager = BlockManager([GroupSize(None, 4_096)], BLOCK)
    tokens = _random_tokens(random.Random(4), PROMPT)
    _insert(manager, tokens)
    holding = manager.open(tokens, "", 0.0, most=PROMPT - 1)
    manager.grow(holding, PROMPT - 1, PROMPT, 0.0)
    costs = {
        "grow, nothing needed": _median(lambda: manager.grow(holding, PROMPT - 1, PROMPT, 0.0)),
        "publish, nothing new": _median(lambda: manager.publish(holding, tokens, PROMPT - 1, 0.0)),
        f"open + close, {PROMPT} tokens cached": _median(
            lambda: manager.close(manager.open(tokens, "", 0.0, most=PROMPT - 1), 0.0)
        ),
    }
    answer = _random_tokens(random.Random(5), 8_192)
    long = manager.open(answer, "answer", 0.0, most=1)
    began = time.perf_counter()
    for row in range(len(answer)):
        manager.grow(long, row, row + 1, 0.0)
        manager.publish(long, answer, row + 1, 0.0)
    costs["grow + publish, mean of a token"] = (time.perf_counter() - began) / len(answer)
    return costs


def _insert(manager: BlockManager, tokens: array[int]) -> None:
    holding = manager.open(tokens, "", 0.0, most=len(tokens) - 1)
    if manager.grow(holding, holding.cached, len(tokens), 0.0):
        manager.publish(holding, tokens, len(tokens), 0.0)
    manager.close(holding, 0.0)
    manager.take_moves()


def _random_tokens(rng: random.Random, count: int) -> array[int]:
    return array("i", rng.choices(range(32_000), k=count))


def _median(action: Callable[[], object], inner: int = 20) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(inner):
            action()
        times.append((time.perf_counter() - began) / inner)
    return statistics.median(times)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_replay", description=__doc__)
    parser.add_argument("--trace", type=Path, help="gzipped JSON Lines with ``hash_ids`` in each line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
