"""A prompt after a restart: computed, loaded from the KV store, or in memory; and gaps between tokens beside loads.

restart   TTFT of one prompt in new processes: without a store; with one, at once, and after SETTLE_S seconds, in
          which the memory of the cache is requested; from the disk itself; and again in the same process
beside    P99 of a stream's gaps while others load LOAD_BYTES, while they find the same in memory, at the same distance,
          and alone
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.setting import Setting
from twofold.core.params import SamplingParams
from twofold.core.request import RequestOptions
from twofold.engine.llm import LLM

ROOT: Final = Path(__file__).parents[1]
PROMPT: Final = 4096
SETTLE_S: Final = 3.0
LOAD_BYTES: Final = 1_000_000_000
PARAMS: Final = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
ONE: Final = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def run(setting: Setting) -> dict[str, Any]:
    """All measurements. Raises AssertionError if a completion differs."""
    tokens = 600 if setting.quick else min(PROMPT, setting.context - 64)
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        cold = _start(setting, tokens, None)
        first = _start(setting, tokens, store)
        at_once = _start(setting, tokens, store)
        settled = _start(setting, tokens, store, SETTLE_S)
        for path in store.rglob("*.kv"):
            _forget(path)
        disk = _start(setting, tokens, store, SETTLE_S)
    assert len({json.dumps(each["said"]) for each in (cold, first, at_once, settled, disk)}) == 1, "an answer differs"
    memory_s = min(each["again_s"] for each in (cold, at_once, settled))
    rows = {"cold": cold, "restart_at_once": at_once, "restart": settled, "restart_from_disk": disk}
    found = {name: each["ttft_s"] for name, each in rows.items()} | {"memory": memory_s}
    print(f"\nkv-store  {setting.name}, {tokens:,} tokens, {settled['bytes'] / 1e6:,.0f} MB: TTFT", flush=True)
    for name, seconds in found.items():
        ratios = f"{seconds / cold['ttft_s']:.3f} × cold, {seconds / memory_s:.2f} × memory"
        print(f"          {name:<18} {seconds:8.3f} s   {ratios}", flush=True)
    return {"tokens": tokens, "ttft_s": found, "gaps": _beside(setting)}


def _start(setting: Setting, tokens: int, store: Path | None, settle_s: float = 0.0) -> dict[str, Any]:
    """Asks for the prompt twice in a process of its own; the first ``ttft_s``, the second ``again_s``, what it said."""
    arguments = [str(setting.path), str(tokens), str(setting.threads), str(store or ""), str(settle_s)]
    command = [sys.executable, "-m", "benchmarks.kv_store", *arguments]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _ask_twice(path: str, tokens: int, threads: int, store: str, settle_s: float) -> dict[str, Any]:
    with LLM(path, threads=threads, max_model_len=tokens + 64, kv_store=store or None) as llm:
        vocabulary = llm.loaded.spec.vocab_size
        llm.generate(_prompt(0, 40, vocabulary), PARAMS)
        time.sleep(settle_s)
        first, again = (llm.generate(_prompt(1, tokens, vocabulary), PARAMS)[0] for _ in range(2))
        counts = None if llm.engine.scheduler.store is None else llm.engine.scheduler.store.snapshot()
    said = [(each.token_ids, repr(each.logprobs)) for output in (first, again) for each in output.outputs]
    return {
        "ttft_s": first.metrics.ttft_s,
        "again_s": again.metrics.ttft_s,
        "loaded": first.metrics.loaded_tokens,
        "bytes": 0 if counts is None else counts.bytes,
        "said": said,
    }


def _beside(setting: Setting) -> dict[str, float]:
    """P99 of a stream's gaps in milliseconds: alone, beside loads, beside the same prompts in memory."""
    tokens = min(2048, setting.context - 512) // 256 * 256
    with tempfile.TemporaryDirectory() as name, _open(setting, name, tokens) as llm:
        layout = llm.config.options.kv_layout(llm.loaded.spec)
        count = 2 if setting.quick else -(-LOAD_BYTES // (tokens * layout.token_bytes()))
        prompts = [_prompt(seed, tokens, setting.vocabulary) for seed in range(10, 10 + count)]
        llm.generate(prompts, ONE)
        llm.close()
        with _open(setting, name, tokens) as again:
            time.sleep(SETTLE_S)
            found = _stream(again, prompts, tokens)
            store = again.engine.scheduler.store
            assert store is not None
            assert store.snapshot().loads == count, "every prompt is loaded once"
    ratio = found["loads"] / found["memory"]
    size = f"{count * tokens * layout.token_bytes() / 1e6:,.0f} MB in {found['loads_s']:.1f} s"
    print(
        f"          gaps of a stream, P99 {found['alone']:.1f} ms alone, {found['loads']:.1f} ms beside loads: {size};"
    )
    print(f"          {found['memory']:.1f} ms beside the same prompts in memory: {ratio:.2f} ×", flush=True)
    return found


def _open(setting: Setting, store: str, tokens: int) -> LLM:
    memory = 3 * LOAD_BYTES // 2
    options: dict[str, Any] = {"max_model_len": tokens + 512, "kv_cache_memory_bytes": memory, "token_budget": "live"}
    return LLM(setting.path, threads=setting.threads, kv_store=store, **options)


def _stream(llm: LLM, prompts: list[Any], tokens: int) -> dict[str, float]:
    """Gaps of a stream while the prompts are asked one after another, of one while they are in memory, and of one."""
    engine, plain = llm.engine, RequestOptions(speculation=False)
    longest = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    ids = tuple(_prompt(5, 32, 1000)["prompt_token_ids"])

    def gaps(asked: list[Any], steps: int) -> list[float]:
        """Milliseconds between a new stream's tokens, for at least so many and until all are done. Each prompt is asked
        when the one before is done, and no earlier than its share of the tokens."""
        engine.add(replace(engine.request(ids, longest, plain), request_id="stream"))
        times, waiting, running = list[float](), list(asked), False
        while waiting or running or len(times) < steps:
            if waiting and not running and len(times) * len(asked) >= (len(asked) - len(waiting)) * steps:
                engine.add(engine.request(tuple(waiting.pop(0)["prompt_token_ids"]), ONE, plain))
                running = True
            for delta in engine.step():
                if delta.request_id == "stream":
                    times.append(time.perf_counter())
                    assert delta.request is None, "the stream is long enough"
                elif delta.request is not None:
                    running = False
        engine.abort("stream")
        return [1000 * (after - before) for before, after in pairwise(times)]

    gaps([], 20)
    loads = gaps(prompts, 0)
    memory, alone = gaps(prompts, len(loads)), gaps([], len(loads))
    found = {name: _p99(each) for name, each in (("alone", alone), ("loads", loads), ("memory", memory))}
    return {**found, "loads_s": sum(loads) / 1000}


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def _prompt(seed: int, tokens: int, vocabulary: int) -> Any:
    chance = Random(seed)
    return {"prompt_token_ids": [chance.randrange(100, vocabulary) for _ in range(tokens)]}


def _forget(path: Path) -> None:
    """Drops a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    PATH, TOKENS, THREADS, STORE, SETTLE = sys.argv[1:]
    print(json.dumps(_ask_twice(PATH, int(TOKENS), int(THREADS), STORE, float(SETTLE))))
