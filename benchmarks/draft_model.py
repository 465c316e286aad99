"""A draft model of 0.5B parameters for a target of 1.5B: speed by class of text, one stream, beside plain decoding and
the other drafters, each alone and together; and the bits.

The limit: with every draft right, k passes of the draft model and a step of k + 1 rows give k + 1 tokens. The ways take
turns in one engine, each with a cache salt of its own. The acceptance rate of the draft model alone is that of drafts
after right ones only, the α of ``planner.predict.speculation``; the speed of the machine does not change it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from benchmarks.setting import Setting
from benchmarks.speculation import Times, answer, options_of
from benchmarks.texts import CLASSES
from twofold import LLM
from twofold.engine.draft.drafter import SequenceDrafter
from twofold.engine.scheduler.draft_model import ModelDrafts
from twofold.engine.scheduler.speculation import Speculator
from twofold.engine.scheduler.step_time import StepShape
from twofold.formats.fetch.sources import resolve
from twofold.host.paths import CacheFolders

TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
GOALS: Final = {"code": 1.35, "prose": 1.05}
"""Wanted speed relative to plain decoding; the other classes of text are for the planner's acceptance rates."""
TEXTS: Final = ("rewriting a file", "extraction", "code", "prose")
WAYS: Final = ("plain", "others", "draft model", "alone")


@dataclass(slots=True)
class Trials:
    """Drafts of the draft model after which all before were right, and the right ones among them."""

    drafts: int = 0
    right: int = 0

    @property
    def acceptance(self) -> float:
        return self.right / max(self.drafts, 1)


def run(setting: Setting) -> dict[str, Any]:
    print(f"\ndraft model  {DRAFT} for {TARGET}, one stream: tokens per second", flush=True)
    folder = CacheFolders.of().create().models
    target, draft = (resolve(name, cache=folder).path for name in (TARGET, DRAFT))
    config = {"method": "draft_model", "model": str(draft)}
    rounds = 1 if setting.quick else min(setting.rounds, 3)
    with LLM(target, max_model_len=4_096, threads=setting.threads, speculative_config=config) as llm:
        found = [
            _class(llm, name, CLASSES[name][: 1 if setting.quick else 2], temperature, rounds, setting)
            for name in TEXTS
            for temperature in (0.0, 0.8)
        ]
        scheduler: Any = llm.engine.scheduler
        unit = scheduler.step_time.predict(StepShape(1, 1))
        model = next(each for each in scheduler.features if isinstance(each, ModelDrafts))
        shares = [model.predict(StepShape(rows, 1)) / unit for rows in (1, 16)]
        print(
            f"  a pass of 1 and of 16 rows takes {shares[0]:.2f} and {shares[1]:.2f} of a step of one row", flush=True
        )
    return {"classes": found, "passes": shares}


def _class(llm: LLM, name: str, tasks: Any, temperature: float, rounds: int, setting: Setting) -> dict[str, Any]:
    trials = Trials()
    gains: dict[str, list[float]] = {way: [] for way in WAYS[1:]}
    total, differing, ttft = {way: Times() for way in WAYS}, 0, dict.fromkeys(WAYS, 0.0)
    for turn in range(rounds):
        one = {way: Times() for way in WAYS}
        for task in tasks:
            outputs = {}
            for way in WAYS:
                options = options_of(f"{way} {name} {temperature} {turn}", speculation=way != "plain")
                with _drafters(llm, way, trials):
                    outputs[way] = answer(llm, task, temperature, options, setting, seed=turn)
                one[way].add(outputs[way])
                total[way].add(outputs[way])
                ttft[way] += outputs[way].metrics.ttft_s or 0.0
            differing += sum(outputs[way].outputs != outputs["plain"].outputs for way in WAYS[1:])
        for way, found in gains.items():
            found.append(one["plain"].seconds / one[way].seconds if one[way].seconds else 1.0)
    drafts = total["draft model"]
    gain = {way: statistics.median(found) for way, found in gains.items()}
    goal = f"goal {GOALS[name]:g}; " if name in GOALS else ""
    print(
        f"  {name}, temperature {temperature:g}: {gain['draft model']:.2f}× ({goal}rounds "
        f"{' '.join(f'{each:.2f}' for each in gains['draft model'])}), others alone {gain['others']:.2f}×, the draft "
        f"model alone {gain['alone']:.2f}× with {trials.acceptance:.3f} of {trials.drafts} accepted, together "
        f"{drafts.tokens / max(drafts.steps, 1):.2f} tokens a step, {drafts.drafted} drafted, "
        f"{drafts.accepted / max(drafts.drafted, 1):.0%} right, TTFT {ttft['draft model'] / ttft['plain']:.2f}×, "
        f"{differing} answers differ",
        flush=True,
    )
    return {
        "class": name,
        "temperature": temperature,
        "gain": gain,
        "gains": gains,
        "acceptance": trials.acceptance,
        "trials": trials.drafts,
        "differing": differing,
    }


@contextmanager
def _drafters(llm: LLM, way: str, trials: Trials) -> Iterator[None]:
    """Switches the draft model off, or everything else. Alone it computes every prompt, even if that is not predicted
    to pay, and its drafts are counted."""
    scheduler: Any = llm.engine.scheduler
    features, propose, learn = scheduler.features, Speculator._proposal, SequenceDrafter.learn_model
    speculator = next(each for each in features if isinstance(each, Speculator))
    model = speculator.model

    def nothing(self: Speculator, sequence: Any, least: float, feed: int) -> None:
        propose(self, sequence, least, feed)
        self._drafting[sequence.sequence_id].proposal = None

    def counted(self: SequenceDrafter, right: bool) -> None:
        trials.drafts += 1
        trials.right += right
        learn(self, right)

    with ExitStack() as patches:
        if way == "alone":
            patches.enter_context(patch.object(Speculator, "_proposal", nothing))
            patches.enter_context(patch.object(Speculator, "_catches_up", lambda *_: True))
            patches.enter_context(patch.object(SequenceDrafter, "learn_model", counted))
        elif way != "draft model":
            scheduler.features = tuple(each for each in features if each is not model)
            speculator.model = None
        try:
            yield
        finally:
            scheduler.features, speculator.model = features, model
