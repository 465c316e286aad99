"""On real traffic the prefix cache finds what an ideal LRU of the same size finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.prefix_replay import ideal_lru, read_trace, replay

REQUESTS = 4_000


@pytest.mark.data
@pytest.mark.parametrize("blocks", [500, 3_000, 20_000])
def test_the_hit_rate_is_that_of_an_ideal_lru(test_data: Path, blocks: int) -> None:
    requests = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")[:REQUESTS]
    ideal = ideal_lru(requests, blocks)
    assert ideal > 0.01
    assert replay(requests, blocks) == pytest.approx(ideal, abs=0.02)
