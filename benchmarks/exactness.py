"""``python -m benchmarks.exactness``: a million draft tokens, and not one bit that differs from plain decoding.

Drafts that are random, right, wrong, wrong at the end, or come from a draft model, beside samples of every kind, cached
prefixes, chunks, preemption by swap and by recomputation, neighbours that leave and readers that rest, on tiny models
with and without attention windows. The exit status is 1 if a completion differs.

``--counts FILE --seconds 80`` runs a part of that at a time: the file adds up the turns of all runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args
from unittest.mock import patch

from tests.engine.drafts import KINDS, ModelDraftCounts, Recorder, Scripted, draft_config, eager_drafts, use
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
MODEL_ROUNDS: Final = 4
"""Crowds of the same cases with a draft model, each with other draft lengths."""
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"swap_space_bytes": 0, "max_num_batched_tokens": 40, "token_budget": "live"},
    {"swap_space_bytes": 1 << 20, "max_num_batched_tokens": 300, "token_budget": "fixed"},
)


Drafts = Literal["scripted", "model"]


@dataclass(slots=True)
class Counts:
    """Draft tokens, those of the draft model among them, and completions of the turns so far."""

    turns: int = 0
    drafted: int = 0
    of_model: int = 0
    accepted: int = 0
    completions: int = 0
    differing: int = 0

    def run(self, llm: LLM, cases: list[Case], expected: list[tuple[object, ...]], seed: int) -> None:
        """Runs the cases together and compares each completion with its own when it ran alone."""
        drafts = llm.engine.scheduler.drafts
        before, of_model = (drafts.drafted, drafts.accepted), ModelDraftCounts(llm)
        done = crowd(llm, cases, seed=seed)
        self.drafted += drafts.drafted - before[0]
        self.of_model += of_model.drafts
        self.accepted += drafts.accepted - before[1]
        self.completions += len(done)
        self.differing += sum(output != expected[number] for number, output in done.items())

    def add(self, other: Counts) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        return (
            f"{self.drafted:,} draft tokens ({self.of_model:,} of a draft model), {self.accepted:,} right, "
            f"{self.completions:,} completions, {self.differing} differ"
        )


class Tally:
    """Counts by kind of drafts, and the file that adds them up over several runs: a line of JSON for each turn."""

    def __init__(self, path: Path | None) -> None:
        self.counts: dict[Drafts, Counts] = {kind: Counts() for kind in get_args(Drafts)}
        self._path = path
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            found = json.loads(line)
            self.counts[found.pop("drafts")].add(Counts(**found))

    def add(self, kind: Drafts, counts: Counts) -> None:
        counts.turns = 1
        self.counts[kind].add(counts)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"drafts": kind, **asdict(counts)}) + "\n")

    def drafted(self, kinds: tuple[Drafts, ...]) -> int:
        """Draft tokens of these kinds of turns; in turns with a draft model, only its own."""
        counts = self.counts
        return sum(counts[kind].of_model if kind == "model" else counts[kind].drafted for kind in kinds)

    def differing(self) -> int:
        return sum(each.differing for each in self.counts.values())

    def __str__(self) -> str:
        return f"scripted: {self.counts['scripted']}; with a draft model: {self.counts['model']}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="draft tokens (default: %(default)s)")
    parser.add_argument("--drafts", choices=get_args(Drafts), help="drafts of one kind only")
    parser.add_argument("--counts", type=Path, help="file of counts that this run continues")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no turn that would end after that")
    given = parser.parse_args()
    kinds: tuple[Drafts, ...] = (given.drafts,) if given.drafts else get_args(Drafts)
    tally, began, longest = Tally(given.counts), time.perf_counter(), 0.0
    swaps = patch.object(blocks, "BLOCK_SECONDS", 0.0)  # else computing so small a model again is always cheaper
    with tempfile.TemporaryDirectory() as folder, swaps:
        while tally.drafted(kinds) < given.rows:
            start = time.perf_counter()
            if start - began + longest > given.seconds:
                break
            kind = min(kinds, key=lambda each: tally.counts[each].turns)
            tally.add(kind, _turn(Path(folder), tally.counts[kind].turns, kind))
            longest = max(longest, time.perf_counter() - start)
            print(f"{tally}; {time.perf_counter() - began:.0f} s", flush=True)
    return 1 if tally.differing() else 0


def _turn(folder: Path, turn: int, kind: Drafts) -> Counts:
    """Runs one set of cases alone, and then together with drafts of that kind, in each setting."""
    tiny = MODELS[turn % len(MODELS)]
    path = write_tiny(folder / "tiny.gguf", tiny).path
    cases = make_cases(CASES, 150, tiny.vocab, seed=turn)
    with LLM(path, max_model_len=256, enable_prefix_caching=False) as single:
        use(single, recorder := Recorder())
        expected = [alone(single, case) for case in cases]
        memory = 900 * KVLayout(single.loaded.spec, KV_FORMATS["bf16"]).token_bytes()
    counts = Counts()
    if kind == "model":
        draft = write_tiny(folder / "draft.gguf", replace(MODELS[0], layers=1)).path
        memory = memory * 4 // 3  # the draft model's layers have their part of each block
    for setting in SETTINGS:
        options = {"max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory_bytes": memory, **setting}
        if kind == "scripted":
            for script in KINDS:
                with LLM(path, **options) as llm:
                    use(llm, None)
                    mislead(llm)
                    use(llm, Scripted(script, recorder.found, tiny.vocab, most=12, seed=turn))
                    counts.run(llm, cases, expected, seed=turn)
            continue
        for seed in range(turn * MODEL_ROUNDS, (turn + 1) * MODEL_ROUNDS):
            with eager_drafts(seed), LLM(path, **options, **draft_config(draft)) as llm:
                mislead(llm)
                counts.run(llm, cases, expected, seed=seed)
    return counts


if __name__ == "__main__":
    sys.exit(main())
