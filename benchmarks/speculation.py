"""Speed with and without draft tokens, by class of text, one stream; prose in batches; and the bits.

The limit: with every draft right, k rows give k tokens for the seconds of a step of k rows, which are measured first.
Both ways run in turn, in one engine, each with a cache salt of its own. Requests of one class follow each other under
one salt, as one tenant would send them: later ones may be drafted from the completions of earlier ones.
"""

from __future__ import annotations

import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.figures import median
from benchmarks.setting import Setting
from benchmarks.texts import CLASSES, PROSE, Task
from twofold import LLM, SamplingParams
from twofold.core.request import RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.engine.scheduler import sequence as sequences

ROWS: Final = (1, 2, 4, 8, 16, 32)
STEPS: Final = 24
GOALS: Final = {
    ("rewriting a file", 0.0): 3.0,
    ("rewriting a file", 0.8): 2.2,
    ("extraction", 0.0): 1.6,
    ("JSON by schema", 0.0): 1.25,
    ("true answer as prediction", 0.0): 4.0,
}
"""Wanted speed relative to plain decoding. Every other class of text shall reach 0.98, prose in batches 0.99."""
STREAMS: Final = (1, 16, 32)


@dataclass(slots=True)
class Times:
    """Seconds of decode, the tokens after the first and the steps of one way; drafted and accepted tokens."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, output: RequestOutput) -> None:
        metrics, record = output.metrics, output.metrics.record
        self.seconds += metrics.decode_s
        self.tokens += metrics.output_tokens - metrics.completions
        self.steps += record.decode.steps
        self.drafted += record.drafted
        self.accepted += record.accepted


def run(setting: Setting) -> dict[str, Any]:
    print(f"\nspeculation  {setting.name}, one stream: tokens per second with and without drafts", flush=True)
    with LLM(setting.path, max_model_len=4_096, threads=setting.threads) as llm:
        report: dict[str, Any] = {"rows": _price(llm, setting)}
        rounds = 1 if setting.quick else min(setting.rounds, 3)
        report["classes"] = [
            _class(llm, name, tasks, temperature, rounds, setting)
            for name, tasks in CLASSES.items()
            for temperature in (0.0, 0.8)
        ]
        report["true answer"] = _prediction(llm, rounds, setting)
        report["batches"] = [_batch(llm, streams, rounds, setting) for streams in STREAMS[1:]]
    return report


class FixedDrafts:
    """Proposes the same token ``count`` times, always."""

    def __init__(self, count: int) -> None:
        self._count = count

    def propose(self, decoding: Iterable[sequences.Sequence], rows: int) -> dict[int, array[int]]:
        count = min(self._count, rows)
        return {each.sequence_id: array("i", [5] * count) for each in decoding if count and each.speculates}

    def learn(self, *_: object) -> None:
        """Learns nothing."""

    feed = forget = learn

    def predicted(self, *_: object) -> int:
        return 0


def _price(llm: LLM, setting: Setting) -> dict[int, float]:
    """Seconds of steps of one sequence by rows, all with logits, relative to one row."""
    scheduler: Any = llm.engine.scheduler
    own, found = scheduler._speculator, defaultdict[int, list[float]](list)
    for _ in range(1 if setting.quick else 3):
        for rows in ROWS:
            scheduler._speculator = FixedDrafts(rows - 1)
            params = SamplingParams(temperature=0.7, seed=rows, max_tokens=STEPS, ignore_eos=True)
            (output,) = llm.generate({"prompt_token_ids": [7] * 256}, params, options=options_of("price"))
            work = output.metrics.record.decode
            found[rows].append(work.seconds / work.steps)
    scheduler._speculator = own
    costs = {rows: median(seconds) / median(found[1]) for rows, seconds in found.items()}
    best = max(costs, key=lambda rows: rows / costs[rows])
    print("  seconds of a step by rows: " + ", ".join(f"{rows}: {cost:.2f}" for rows, cost in costs.items()))
    print(f"  limit: {best / costs[best]:.1f}× with {best - 1} right drafts in every step", flush=True)
    return costs


def _class(
    llm: LLM, name: str, tasks: Sequence[Task], temperature: float, rounds: int, setting: Setting
) -> dict[str, Any]:
    ways = {"plain": Times(), "drafts": Times()}
    gains, differing = [], 0
    for turn in range(rounds):
        one = {way: Times() for way in ways}
        for task in tasks[:1] if setting.quick else tasks:
            outputs = {}
            for way, times in ways.items():
                options = options_of(f"{way} {name} {temperature} {turn}", speculation=way == "drafts")
                outputs[way] = answer(llm, task, temperature, options, setting, seed=turn)
                one[way].add(outputs[way])
                times.add(outputs[way])
            differing += outputs["plain"].outputs != outputs["drafts"].outputs
        gains.append(_gain(one))
    return _report(name, temperature, ways, gains, differing)


def _prediction(llm: LLM, rounds: int, setting: Setting) -> dict[str, Any]:
    ways = {"plain": Times(), "drafts": Times()}
    gains, differing = [], 0
    for turn in range(rounds):
        one = {way: Times() for way in ways}
        for task in [tasks[0] for tasks in CLASSES.values()]:
            plain = answer(llm, task, 0.0, options_of(f"{turn} a", speculation=False), setting)
            told = replace(options_of(f"{turn} b"), prediction=plain.outputs[0].token_ids)
            drafts = answer(llm, task, 0.0, told, setting)
            for way, output in (("plain", plain), ("drafts", drafts)):
                one[way].add(output)
                ways[way].add(output)
            differing += plain.outputs != drafts.outputs
        gains.append(_gain(one))
    return _report("true answer as prediction", 0.0, ways, gains, differing)


def _batch(llm: LLM, streams: int, rounds: int, setting: Setting) -> dict[str, Any]:
    """Prose in a batch: seconds of whole requests, as throughput counts them."""
    gains = []
    tasks = [PROSE[number % len(PROSE)] for number in range(streams)]
    length = 8 if setting.quick else 96
    for turn in range(rounds):
        seconds = {}
        for way in ("plain", "drafts"):
            prompts = [TokensPrompt(prompt_token_ids=_ids(llm, task)) for task in tasks]
            params = [
                SamplingParams(temperature=0.8, seed=n, max_tokens=length, ignore_eos=True) for n in range(streams)
            ]
            options = options_of(f"{way} {streams} {turn}", speculation=way == "drafts")
            outputs = llm.generate(prompts, params, options=options)
            first = min(output.metrics.first_token or 0.0 for output in outputs)
            seconds[way] = max(output.metrics.finished for output in outputs) - first
        gains.append(seconds["plain"] / seconds["drafts"])
    gain = statistics.median(gains)
    print(f"  {streams:2d} streams of prose, temperature 0.8: {gain:.3f}× (goal 0.99)", flush=True)
    return {"streams": streams, "gain": gain, "gains": gains}


def answer(
    llm: LLM, task: Task, temperature: float, options: RequestOptions, setting: Setting, seed: int = 0
) -> RequestOutput:
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=16 if setting.quick else task.tokens,
        logprobs=0,
        structured_outputs=task.form,
    )
    return llm.generate({"prompt_token_ids": _ids(llm, task)}, params, options=options)[0]


def _ids(llm: LLM, task: Task) -> list[int]:
    return llm.get_tokenizer().apply_chat_template([{"role": "user", "content": task.text}], add_generation_prompt=True)


def options_of(salt: str, *, speculation: bool = True) -> RequestOptions:
    return RequestOptions(cache_salt=salt, speculation=speculation)


def _gain(one: dict[str, Times]) -> float:
    return one["plain"].seconds / one["drafts"].seconds if one["drafts"].seconds else 1.0


def _report(
    name: str, temperature: float, ways: dict[str, Times], gains: list[float], differing: int
) -> dict[str, Any]:
    plain, drafts = ways["plain"], ways["drafts"]
    goal, gain = GOALS.get((name, temperature), 0.98), statistics.median(gains)
    right = drafts.accepted / drafts.drafted if drafts.drafted else 0.0
    print(
        f"  {name}, temperature {temperature:g}: {gain:.2f}× (goal {goal:g}; rounds "
        f"{' '.join(f'{each:.2f}' for each in gains)}), {plain.tokens / plain.seconds:.1f} → "
        f"{drafts.tokens / drafts.seconds:.1f} tok/s, {drafts.tokens / max(drafts.steps, 1):.2f} tokens a step, "
        f"{drafts.drafted} drafted, {right:.0%} right, {differing} answers differ",
        flush=True,
    )
    return {
        "class": name,
        "temperature": temperature,
        "gain": gain,
        "gains": gains,
        "tokens_per_step": drafts.tokens / max(drafts.steps, 1),
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "differing": differing,
    }
