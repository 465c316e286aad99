"""A draft model of 0.5B parameters for a target of 1.5B: speed on code and prose, one stream, beside plain decoding and
the other drafters alone; and the bits.

The limit: with every draft right, k passes of the draft model and a step of k + 1 rows give k + 1 tokens. The ways take
turns in one engine, each with a cache salt of its own.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from benchmarks.setting import Setting
from benchmarks.speculation import Times, answer, options_of
from benchmarks.texts import CLASSES, PROSE
from twofold import LLM
from twofold.engine.scheduler.step_time import StepShape
from twofold.formats.fetch.sources import resolve
from twofold.host.paths import CacheFolders

TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
GOALS: Final = {"code": 1.35, "prose": 1.05}
"""Wanted speed relative to plain decoding."""
WAYS: Final = ("plain", "others", "draft model")


def run(setting: Setting) -> dict[str, Any]:
    print(f"\ndraft model  {DRAFT} for {TARGET}, one stream: tokens per second", flush=True)
    folder = CacheFolders.of().create().models
    target, draft = (resolve(name, cache=folder).path for name in (TARGET, DRAFT))
    config = {"method": "draft_model", "model": str(draft)}
    tasks = {"code": CLASSES["code"], "prose": PROSE}
    rounds = 1 if setting.quick else min(setting.rounds, 3)
    with LLM(target, max_model_len=4_096, threads=setting.threads, speculative_config=config) as llm:
        found = [
            _class(llm, name, tasks[name][: 1 if setting.quick else 2], temperature, rounds, setting)
            for name in tasks
            for temperature in (0.0, 0.8)
        ]
        scheduler: Any = llm.engine.scheduler
        unit = scheduler.step_time.predict(StepShape(1, 1))
        shares = [scheduler._draft_model.predict(StepShape(rows, 1)) / unit for rows in (1, 16)]
        print(
            f"  a pass of 1 and of 16 rows takes {shares[0]:.2f} and {shares[1]:.2f} of a step of one row", flush=True
        )
    return {"classes": found, "passes": shares}


def _class(llm: LLM, name: str, tasks: Any, temperature: float, rounds: int, setting: Setting) -> dict[str, Any]:
    scheduler: Any = llm.engine.scheduler
    model = scheduler._draft_model
    gains: dict[str, list[float]] = {way: [] for way in WAYS[1:]}
    total, differing, ttft = {way: Times() for way in WAYS}, 0, dict.fromkeys(WAYS, 0.0)
    for turn in range(rounds):
        one = {way: Times() for way in WAYS}
        for task in tasks:
            outputs = {}
            for way in WAYS:
                scheduler._draft_model = scheduler._speculator.model = model if way == "draft model" else None
                options = options_of(f"{way} {name} {temperature} {turn}", speculation=way != "plain")
                outputs[way] = answer(llm, task, temperature, options, setting, seed=turn)
                one[way].add(outputs[way])
                total[way].add(outputs[way])
                ttft[way] += outputs[way].metrics.ttft_s or 0.0
            differing += sum(outputs[way].outputs != outputs["plain"].outputs for way in WAYS[1:])
        for way, found in gains.items():
            found.append(one["plain"].seconds / one[way].seconds if one[way].seconds else 1.0)
    scheduler._draft_model = scheduler._speculator.model = model
    drafts = total["draft model"]
    gain = {way: statistics.median(found) for way, found in gains.items()}
    print(
        f"  {name}, temperature {temperature:g}: {gain['draft model']:.2f}× (goal {GOALS[name]:g}; rounds "
        f"{' '.join(f'{each:.2f}' for each in gains['draft model'])}), others alone {gain['others']:.2f}×, "
        f"{drafts.tokens / max(drafts.steps, 1):.2f} tokens a step, {drafts.drafted} drafted, "
        f"{drafts.accepted / max(drafts.drafted, 1):.0%} right, TTFT {ttft['draft model'] / ttft['plain']:.2f}×, "
        f"{differing} answers differ",
        flush=True,
    )
    return {"class": name, "temperature": temperature, "gain": gain, "gains": gains, "differing": differing}
