"""Speed with and without draft tokens, by class of text, one stream; prose in batches; and the bits.

The limit: with every draft right, k rows give k tokens for the seconds of a step of k rows, which are measured first.
Both ways run in turn, in one engine, each with a cache salt of its own. Requests of one class follow each other under
one salt, as one tenant would send them: later ones may be drafted from the completions of earlier ones.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from benchmarks.compare import ROOT, peer_commands
from benchmarks.figures import median
from benchmarks.setting import Setting
from benchmarks.texts import CLASSES, PROSE, Task
from benchmarks.worker import Worker
from twofold import LLM, SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.engine.scheduler import sequence as sequences
from twofold.engine.scheduler.feature import StepFeature
from twofold.engine.scheduler.speculation import Speculator

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
NGRAMS: Final = tuple((size, most) for size in (2, 3, 5, 8, 12) for most in (8, 16, 32))
"""Lengths of n-grams and drafts that llama.cpp is tried with."""
TRIED: Final = 128
"""Tokens of a completion with which a setting is tried."""
PEER_GOAL: Final = 1.4
PYTHON_GOAL: Final = 0.05
"""Wanted share of a step outside of the models."""


@dataclass(slots=True)
class Times:
    """Seconds of decode, the tokens after the first and the steps of one way; drafted and accepted tokens. ``step_s``
    is the time of its decode steps, from the end of the one before, and ``model_s`` that of the models in them."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    step_s: float = 0.0
    model_s: float = 0.0

    def add(self, output: RequestOutput) -> None:
        metrics, record = output.metrics, output.metrics.record
        self.seconds += metrics.decode_s
        self.tokens += metrics.output_tokens - metrics.completions
        self.steps += record.decode.steps
        self.drafted += record.drafted
        self.accepted += record.accepted

    @property
    def outside(self) -> float:
        """The share of its steps outside of the models: Python and sampling."""
        return 1 - self.model_s / self.step_s if self.step_s else 0.0


class StepClock:
    """Adds the seconds of decode steps to ``times``."""

    def __init__(self) -> None:
        self.times = Times()

    def on_step(self, report: StepReport) -> None:
        if report.decode_rows and not report.prefill_rows:
            self.times.step_s += report.host_s + report.moves_s + report.seconds
            self.times.model_s += report.forward_s + report.draft_s

    def on_request(self, report: RequestMetrics) -> None:
        """Needs nothing."""


def run(setting: Setting) -> dict[str, Any]:
    print(f"\nspeculation  {setting.name}, one stream: tokens per second with and without drafts", flush=True)
    with LLM(setting.path, max_model_len=4_096, threads=setting.threads) as llm:
        report: dict[str, Any] = {"rows": _price(llm, setting)}
        rounds = 1 if setting.quick else min(setting.rounds, 3)
        llm.engine.observe(clock := StepClock())
        report["classes"] = [
            _class(llm, clock, name, tasks, temperature, rounds, setting)
            for name, tasks in CLASSES.items()
            for temperature in (0.0, 0.8)
        ]
        report["true answer"] = _prediction(llm, rounds, setting)
        report["batches"] = [_batch(llm, streams, rounds, setting) for streams in STREAMS[1:]]
        command = peer_commands(ROOT.parent).get("llama.cpp")
        if command is None:
            print("  llama.cpp is not installed: `make peers` installs it", flush=True)
        else:
            report["llama.cpp"] = _beside_llama_cpp(llm, command, setting)
    return report


class FixedDrafts(StepFeature):
    """Proposes the same token ``count`` times, always."""

    def __init__(self, count: int) -> None:
        self._count = count

    def propose(self, decoding: Collection[sequences.Sequence], rows: int) -> dict[int, array[int]]:
        count = min(self._count, rows)
        return {each.sequence_id: array("i", [5] * count) for each in decoding if count and each.speculates}


class TimedSpeculator:
    """Passes every call on to ``speculator`` and adds up the seconds of those that a step waits for.

    ``overlap`` runs while another step is computed, so it does not count."""

    def __init__(self, speculator: Any) -> None:
        self._speculator = speculator
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._speculator, name)
        if name == "overlap":
            return cast("Callable[..., Any]", call)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def _replaced(features: Iterable[StepFeature], speculator: StepFeature) -> tuple[StepFeature, ...]:
    return tuple(speculator if isinstance(each, Speculator) else each for each in features)


def _price(llm: LLM, setting: Setting) -> dict[int, float]:
    """Seconds of steps of one sequence by rows, all with logits, relative to one row."""
    scheduler, found = llm.engine.scheduler, defaultdict[int, list[float]](list)
    own = scheduler.features
    for _ in range(1 if setting.quick else 3):
        for rows in ROWS:
            scheduler.features = _replaced(own, FixedDrafts(rows - 1))
            params = SamplingParams(temperature=0.7, seed=rows, max_tokens=STEPS, ignore_eos=True)
            (output,) = llm.generate({"prompt_token_ids": [7] * 256}, params, options=options_of("price"))
            work = output.metrics.record.decode
            found[rows].append(work.seconds / work.steps)
    scheduler.features = own
    costs = {rows: median(seconds) / median(found[1]) for rows, seconds in found.items()}
    best = max(costs, key=lambda rows: rows / costs[rows])
    print("  seconds of a step by rows: " + ", ".join(f"{rows}: {cost:.2f}" for rows, cost in costs.items()))
    print(f"  limit: {best / costs[best]:.1f}× with {best - 1} right drafts in every step", flush=True)
    return costs


def _class(
    llm: LLM, clock: StepClock, name: str, tasks: Sequence[Task], temperature: float, rounds: int, setting: Setting
) -> dict[str, Any]:
    ways = {"plain": Times(), "drafts": Times()}
    gains, differing = [], 0
    for turn in range(rounds):
        one = {way: Times() for way in ways}
        for task in tasks[:1] if setting.quick else tasks:
            outputs = {}
            for way, times in ways.items():
                options = options_of(f"{way} {name} {temperature} {turn}", speculation=way == "drafts")
                clock.times = times
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
    """Prose in a batch: seconds from the first token on. Each round runs plain, drafts, drafts, plain, so that a slow
    drift of the machine cancels; ``noise`` compares the plain runs of a round with each other. ``share``
    is the part of the runs with drafts that the speculator's own calls take; noise does not hide it."""
    scheduler = llm.engine.scheduler
    own = scheduler.features
    timed = TimedSpeculator(next(each for each in own if isinstance(each, Speculator)))
    scheduler.features = _replaced(own, cast("StepFeature", timed))
    tasks = [PROSE[number % len(PROSE)] for number in range(streams)]
    length = 8 if setting.quick else 48
    gains, noise, drafting = [], [], 0.0
    for turn in range(1 if setting.quick else 2 * rounds):
        seconds = []
        for place, speculation in enumerate((False, True, True, False)):
            prompts = [TokensPrompt(prompt_token_ids=_ids(llm, task)) for task in tasks]
            params = [
                SamplingParams(temperature=0.8, seed=n, max_tokens=length, ignore_eos=True) for n in range(streams)
            ]
            options = options_of(f"{streams} {turn} {place}", speculation=speculation)
            outputs = llm.generate(prompts, params, options=options)
            first = min(output.metrics.first_token or 0.0 for output in outputs)
            seconds.append(max(output.metrics.finished for output in outputs) - first)
        drafting += seconds[1] + seconds[2]
        gains.append((seconds[0] + seconds[3]) / (seconds[1] + seconds[2]))
        noise.append(seconds[0] / seconds[3])
    scheduler.features = own
    share = timed.seconds / drafting
    gain = statistics.median(gains)
    print(
        f"  {streams:2d} streams of prose, temperature 0.8: {gain:.3f}× (goal 0.99; rounds "
        f"{' '.join(f'{each:.3f}' for each in gains)}), "
        f"plain beside plain {' '.join(f'{each:.3f}' for each in noise)}; "
        f"the speculator's own calls took {share:.2%}",
        flush=True,
    )
    return {"streams": streams, "gain": gain, "gains": gains, "noise": noise, "share": share}


def _beside_llama_cpp(llm: LLM, command: Sequence[str], setting: Setting) -> list[dict[str, Any]]:
    """Greedy completions beside llama.cpp with its best setting of n-grams, found on the first task of each class.

    The tokens of both differ after a while, because their numerics do, so each has a rate of its own tokens."""
    found = []
    stop = sorted(llm.get_tokenizer().eos_ids)
    with Worker("llama.cpp", command, ROOT) as peer:
        peer.ask(op="load", path=str(setting.path), threads=setting.threads, context=4_096, streams=1)

        def rate(ngram: tuple[int, int], prompts: Any, limit: int = 1_000) -> float:
            times = [
                peer.ask(op="lookup", prompt=ids, count=min(count, limit), stop=stop, size=ngram[0], most=ngram[1])
                for ids, count in prompts
            ]
            return float(sum(each["tokens"] - 1 for each in times) / sum(each["decode"] for each in times))

        for name, tasks in CLASSES.items():
            if tasks[0].form is not None:
                continue  # the worker does not constrain its output
            prompts = [(_ids(llm, task), 16 if setting.quick else task.tokens) for task in tasks]

            settings = NGRAMS[:1] if setting.quick else NGRAMS
            best = max(settings, key=lambda ngram: rate(ngram, prompts[:1], TRIED))
            ours = Times()
            for task in tasks:
                ours.add(answer(llm, task, 0.0, options_of(f"beside {name}"), setting))
            rates = {"ours": ours.tokens / ours.seconds, "theirs": rate(best, prompts), "plain": rate((1, 0), prompts)}
            print(
                f"  {name}, temperature 0: {rates['ours']:.1f} tok/s, llama.cpp {rates['theirs']:.1f} with n-grams of "
                f"{best[0]} and {best[1]} drafts, {rates['plain']:.1f} without: "
                f"{rates['ours'] / rates['theirs']:.2f}× (goal {PEER_GOAL:g} on repeating text)",
                flush=True,
            )
            found.append({"class": name, "ngram": best, **rates})
    return found


def answer(
    llm: LLM, task: Task, temperature: float, options: RequestOptions, setting: Setting, seed: int = 0
) -> RequestOutput:
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=16 if setting.quick and task.form is None else task.tokens,
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
    outside = ""
    if drafts.step_s:
        outside = (
            f", {plain.outside:.1%} → {drafts.outside:.1%} of a step outside of the model (goal {PYTHON_GOAL:.0%})"
        )
    print(
        f"  {name}, temperature {temperature:g}: {gain:.2f}× (goal {goal:g}; rounds "
        f"{' '.join(f'{each:.2f}' for each in gains)}), {plain.tokens / plain.seconds:.1f} → "
        f"{drafts.tokens / drafts.seconds:.1f} tok/s, {drafts.tokens / max(drafts.steps, 1):.2f} tokens a step, "
        f"{drafts.drafted} drafted, {right:.0%} right, {differing} answers differ{outside}",
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
        "outside": {way: times.outside for way, times in ways.items() if times.step_s},
    }
