"""``python -m benchmarks.exactness``: a million draft tokens, and not one bit that differs from plain decoding.

Drafts that are random, right, wrong, wrong at the end, or come from a draft model, beside samples of every kind, cached
prefixes, chunks, preemption by swap and by recomputation, neighbours that leave and readers that rest, on tiny models
with and without attention windows. The exit status is 1 if a completion differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.engine.drafts import KINDS, Recorder, Scripted, draft_config, eager_drafts, use
from tests.engine.test_exactness import Case, alone, crowd, make_cases, mislead
from tests.support.tiny import TinyOptions, write_tiny
from twofold import LLM
from twofold.core.kv_layout import KV_FORMATS, KVLayout
from twofold.engine.scheduler import blocks

MODELS: Final = (
    TinyOptions(format="Q8_0"),
    TinyOptions(architecture="gemma3", layers=6, window=24, format="Q8_0"),
)
CASES: Final = 150
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"swap_space_bytes": 0, "max_num_batched_tokens": 40, "token_budget": "live"},
    {"swap_space_bytes": 1 << 20, "max_num_batched_tokens": 300, "token_budget": "fixed"},
)


@dataclass(slots=True)
class Counts:
    drafted: int = 0
    accepted: int = 0
    completions: int = 0
    differing: int = 0

    def add(self, llm: LLM, cases: list[Case], expected: list[tuple[object, ...]], seed: int) -> None:
        """Runs the cases together and compares each completion with its own when it ran alone."""
        drafts = llm.engine.scheduler.drafts
        before = drafts.drafted, drafts.accepted
        done = crowd(llm, cases, seed=seed)
        self.drafted += drafts.drafted - before[0]
        self.accepted += drafts.accepted - before[1]
        self.completions += len(done)
        self.differing += sum(output != expected[number] for number, output in done.items())

    def __str__(self) -> str:
        return (
            f"{self.drafted:,} draft tokens, {self.accepted:,} right, {self.completions:,} completions, "
            f"{self.differing} differ"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="draft tokens (default: %(default)s)")
    wanted = parser.parse_args().rows
    scripted, of_model = Counts(), Counts()
    turn, began = 0, time.perf_counter()
    swaps = patch.object(blocks, "BLOCK_SECONDS", 0.0)  # else computing so small a model again is always cheaper
    with tempfile.TemporaryDirectory() as folder, swaps:
        while scripted.drafted + of_model.drafted < wanted:
            _turn(Path(folder), turn, scripted, of_model)
            turn += 1
            print(f"{scripted}; of the draft model {of_model}; {time.perf_counter() - began:.0f} s", flush=True)
    return 1 if scripted.differing or of_model.differing else 0


def _turn(folder: Path, turn: int, scripted: Counts, of_model: Counts) -> None:
    tiny = MODELS[turn % len(MODELS)]
    path = write_tiny(folder / "tiny.gguf", tiny).path
    draft = write_tiny(folder / "draft.gguf", replace(MODELS[0], layers=1)).path
    cases = make_cases(CASES, 150, tiny.vocab, seed=turn)
    with LLM(path, max_model_len=256, enable_prefix_caching=False) as single:
        use(single, recorder := Recorder())
        expected = [alone(single, case) for case in cases]
        memory = 900 * KVLayout(single.loaded.spec, KV_FORMATS["bf16"]).token_bytes()
    for setting in SETTINGS:
        options = {"max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory_bytes": memory, **setting}
        for kind in KINDS:
            with LLM(path, **options) as llm:
                use(llm, None)
                mislead(llm)
                use(llm, Scripted(kind, recorder.found, tiny.vocab, most=12, seed=turn))
                scripted.add(llm, cases, expected, seed=turn)
        options["kv_cache_memory_bytes"] = memory * 4 // 3  # the draft model's layers have their part of each block
        with eager_drafts(turn), LLM(path, **options, **draft_config(draft)) as llm:
            mislead(llm)
            of_model.add(llm, cases, expected, seed=turn)


if __name__ == "__main__":
    sys.exit(main())
