"""On real traffic the prefix cache finds what an ideal LRU of the same size finds."""

from __future__ import annotations

import gzip
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pytest

from twofold.engine.kv.manager import BlockManager, GroupSize

REQUESTS = 4_000
BLOCK = 16


def read_trace(path: Path) -> list[list[int]]:
    """The hashes of the 512-token prefix blocks of each request, in order of arrival (Mooncake, FAST'25)."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line in islice(lines, REQUESTS)]


def replay(requests: Iterable[Sequence[int]], blocks: int) -> float:
    """Hit rate of the prefix cache, as a share of all prefix blocks, over sequential requests. Each prefix block is one
    cache block of synthetic tokens."""
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


@pytest.mark.data
@pytest.mark.parametrize("blocks", [500, 3_000, 20_000])
def test_the_hit_rate_is_that_of_an_ideal_lru(test_data: Path, blocks: int) -> None:
    requests = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")
    ideal = ideal_lru(requests, blocks)
    assert ideal > 0.01
    assert replay(requests, blocks) == pytest.approx(ideal, abs=0.02)
