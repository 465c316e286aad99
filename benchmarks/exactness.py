"""``python -m benchmarks.exactness``: a million draft tokens, and not one bit that differs from plain decoding.

Drafts that are random, right, wrong, or wrong at the end, beside samples of every kind, cached prefixes, chunks,
preemption by swap and by recomputation, neighbours that leave and readers that rest, on tiny models with and without
attention windows. The exit status is 1 if a completion differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.engine.drafts import KINDS, Recorder, Scripted, use
from tests.engine.test_exactness import alone, crowd, make_cases, mislead
from tests.support.tiny import TinyOptions, write_tiny
from twofold import LLM
from twofold.core.kv_layout import KV_FORMATS, KVLayout
from twofold.engine.scheduler import blocks

MODELS: Final = (
    TinyOptions(format="Q8_0"),
    TinyOptions(architecture="gemma3", layers=4, window=24, format="Q8_0"),
)
CASES: Final = 150
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"swap_space_bytes": 0, "max_num_batched_tokens": 40, "token_budget": "live"},
    {"swap_space_bytes": 1 << 20, "max_num_batched_tokens": 300, "token_budget": "fixed"},
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="draft tokens (default: %(default)s)")
    wanted = parser.parse_args().rows
    drafted = accepted = completions = differing = turn = 0
    began = time.perf_counter()
    swaps = patch.object(blocks, "BLOCK_SECONDS", 0.0)  # else computing so small a model again is always cheaper
    with tempfile.TemporaryDirectory() as folder, swaps:
        while drafted < wanted:
            tiny = MODELS[turn % len(MODELS)]
            path = write_tiny(Path(folder) / "tiny.gguf", tiny).path
            cases = make_cases(CASES, 150, tiny.vocab, seed=turn)
            with LLM(path, max_model_len=256, enable_prefix_caching=False) as single:
                use(single, recorder := Recorder())
                expected = [alone(single, case) for case in cases]
                memory = 900 * KVLayout(single.loaded.spec, KV_FORMATS["bf16"]).token_bytes()
            for kind in KINDS:
                for setting in SETTINGS:
                    with LLM(path, max_model_len=256, max_num_seqs=8, kv_cache_memory_bytes=memory, **setting) as llm:
                        use(llm, None)
                        mislead(llm)
                        use(llm, scripted := Scripted(kind, recorder.found, tiny.vocab, most=12, seed=turn))
                        done = crowd(llm, cases, seed=turn)
                    drafted, accepted = drafted + scripted.drafted, accepted + scripted.accepted
                    completions += len(done)
                    differing += sum(output != expected[number] for number, output in done.items())
            turn += 1
            print(
                f"{drafted:,} draft tokens, {accepted:,} right, {completions:,} completions, {differing} differ, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
