"""Each completion has the bits that it has alone, under everything at once: every step as bytes, other requests in the
batch, chunks, cached prefixes, eviction, preemption by swap and by recomputation, requests that are cancelled, several
completions, slow readers. A thousand completions, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, get_args

import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.drafts import KINDS as DRAFTS
from tests.engine.drafts import Key, Kind, Recorder, Scripted, use
from tests.support.tiny import TWO_SIZES, TinyModel, TinyOptions
from twofold.backends.base import NO_MASKS, StepHandle
from twofold.backends.cpu import backend
from twofold.backends.runner import HostRunner
from twofold.backends.wire import read_masks, read_outcome, read_step, to_bytes
from twofold.core.kv_layout import KV_FORMATS, KVLayout, KVType
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.request import RequestOptions
from twofold.core.step import SAMPLED_TOKEN, StepInput, StepMasks, StepOutcome
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput

CASES = 150
SHAPES: list[dict[str, Any]] = [
    {"seqs": 8, "rows": 64, "blocks": 400, "context": 96},
    {"seqs": 6, "rows": 11, "blocks": 24, "context": 96},
    {"seqs": 8, "rows": 64, "blocks": 24, "host_slots": 60, "context": 96, "overlap": False},
    {"seqs": 8, "rows": 20, "blocks": 30, "host_slots": 9, "context": 96, "caching": False},
]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"top_k": 7, "logprobs": 1},
    {"top_p": 0.8, "temperature": 1.5},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"prompt_logprobs": 1},
    {"n": 3, "logprobs": 0},
    {"n": 2, "best_of": 4},
    {"stop": ["a", "the"], "stop_token_ids": list(range(40, 60)), "min_tokens": 3, "ignore_eos": True},
    {"structured_outputs": StructuredOutputsParams(regex="[ab]{1,60}"), "logprobs": 0},
]
Case = tuple[tuple[int, ...], SamplingParams]


def make_cases(count: int, longest: int, vocab: int, seed: int) -> list[Case]:
    """Prompts of which many share a prefix, as conversations do."""
    chance = Random(seed)
    prompts: list[tuple[int, ...]] = [()]
    cases = []
    for number in range(count):
        base = chance.choice(prompts[-20:])
        cut = base[: chance.randint(0, len(base))]
        more = tuple(chance.randrange(3, vocab) for _ in range(chance.randint(1, longest // 2)))
        prompts.append((cut + more)[:longest])
        kind = KINDS[number % len(KINDS)]
        longest_answer = max(chance.randint(1, 50), kind.get("min_tokens", 1))
        cases.append((prompts[-1], SamplingParams(seed=number, max_tokens=longest_answer, **kind)))
    return cases


def mislead(llm: LLM) -> None:
    """Teaches the engine that completions are short, so that it admits more sequences than blocks will last for."""
    params = SamplingParams(max_tokens=50, stop_token_ids=range(3, 200))
    llm.generate([{"prompt_token_ids": [7]}] * 80, params)


def drafting(llm: LLM, kind: Kind, known: dict[Key, Any]) -> Scripted:
    """Makes the engine propose tokens of that kind, wherever there is room."""
    use(llm, scripted := Scripted(kind, known, VOCAB))
    return scripted


def content(output: RequestOutput) -> tuple[object, ...]:
    """All of an output but its id and its times."""
    return output.prompt_token_ids, output.prompt_logprobs, output.outputs


def alone(llm: LLM, case: Case) -> tuple[object, ...]:
    prompt, params = case
    return content(llm.generate({"prompt_token_ids": prompt}, params)[0])


def crowd(llm: LLM, cases: list[Case], seed: int) -> dict[int, tuple[object, ...]]:
    """Requests arrive at random, some are paused for a while, and some of every eighth are cancelled. Returns what the
    others got, by case; none of them is missing."""
    chance, engine = Random(seed), llm.engine
    waiting, under_way, done = list(range(len(cases))), {}, {}
    chance.shuffle(waiting)
    impatient, cancelled = set(waiting[::8]), set()
    paused: set[str] = set()
    while waiting or engine.has_work:
        for _ in range(chance.choice((0, 0, 1, 2, 5))):
            if waiting:
                number = waiting.pop()
                options = RequestOptions(priority=chance.randint(-1, 1), tenant=chance.choice("ab"))
                under_way[engine.add(engine.request(*cases[number], options))] = number
        for delta in engine.step():
            if delta.request is not None:
                done[under_way.pop(delta.request_id)] = content(delta.request)
                paused.discard(delta.request_id)
        leaving = [name for name, number in under_way.items() if number in impatient]
        if leaving and chance.random() < 0.1:
            name = chance.choice(leaving)
            engine.abort(name)
            paused.discard(name)
            cancelled.add(under_way.pop(name))
        if under_way and chance.random() < 0.1:
            paused.add(name := chance.choice(list(under_way)))
            engine.pause(name, paused=True)
        if paused and (chance.random() < 0.2 or len(paused) == len(under_way)):
            engine.pause(paused.pop(), paused=False)
    engine.check_idle()
    assert cancelled, "no client cancelled its request"
    assert done.keys() == set(range(len(cases))) - cancelled
    return done


class BytesHandle:
    """A step whose masks and outcome are sent as bytes."""

    def __init__(self, handle: StepHandle) -> None:
        self._handle = handle

    def wait(self) -> None:
        self._handle.wait()

    def result(self, masks: StepMasks = NO_MASKS) -> StepOutcome:
        outcome = self._handle.result(read_masks(to_bytes(masks)))
        assert to_bytes(read_outcome(to_bytes(outcome))) == to_bytes(outcome)
        return read_outcome(to_bytes(outcome))


class BytesRunner(HostRunner):
    """A runner that gets every step as bytes; ``steps`` counts them, ``longest`` is the longest of a decode step, and
    ``ahead`` counts rows that were planned before their tokens were known."""

    steps = 0
    ahead = 0
    longest = 0

    def execute(self, step: StepInput, *, overlap: bool = False) -> Any:
        sent = to_bytes(step)
        self.steps += 1
        self.ahead += sum(entry.tokens == SAMPLED_TOKEN for entry in step.steps)
        if all(entry.decode and entry.begin is None for entry in step.steps) and not step.moves:
            self.longest = max(self.longest, len(sent) // len(step.steps))
        return BytesHandle(super().execute(read_step(sent), overlap=overlap))


@pytest.mark.usefixtures("swaps_are_cheap")
def test_a_thousand_completions_on_the_mock(make_llm: MakeLLM) -> None:
    cases = make_cases(CASES, 40, VOCAB, seed=1)
    single = make_llm(seqs=4, rows=96, blocks=400, context=96, caching=False)
    use(single, None)
    expected = [alone(single, case) for case in cases]
    for shape in SHAPES:
        llm = make_llm(runner=BytesRunner, **shape)
        use(llm, None)
        mislead(llm)
        done = crowd(llm, cases, seed=2)
        assert done == {number: expected[number] for number in done}, shape
        runner: Any = llm.loaded.runner
        assert runner.steps > 100
        assert (runner.ahead > 100) is shape.get("overlap", True)
        assert 0 < runner.longest < 400, "a step that generates sends new tokens and changes, not what is known"


@pytest.mark.usefixtures("swaps_are_cheap")
@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_change_nothing(make_llm: MakeLLM, kind: Kind) -> None:
    """All bits equal those without drafts, under each kind of drafts, in two of the shapes."""
    cases = make_cases(60, 40, VOCAB, seed=1)
    single = make_llm(seqs=4, rows=96, blocks=400, context=96, caching=False)
    use(single, recorder := Recorder())
    expected = [alone(single, case) for case in cases]
    for shape in SHAPES[DRAFTS.index(kind) % 2 :: 2]:
        llm = make_llm(runner=BytesRunner, **shape)
        use(llm, None)
        mislead(llm)
        scripted = drafting(llm, kind, recorder.found)
        done = crowd(llm, cases, seed=2)
        assert done == {number: expected[number] for number in done}, shape
        assert scripted.drafted > 500
        least = {"random": 0.0, "right": 0.85, "wrong": 0.0, "wrong at the end": 0.4}[kind]
        assert scripted.accepted / scripted.drafted >= least


@pytest.mark.usefixtures("swaps_are_cheap")
def test_the_small_shapes_really_preempt_both_ways(make_llm: MakeLLM) -> None:
    counts = []
    for shape in SHAPES[1:3]:
        llm = make_llm(**shape)
        mislead(llm)
        crowd(llm, make_cases(90, 40, VOCAB, seed=1), seed=2)
        counts.append((llm.engine.scheduler.preemptions, llm.engine.scheduler.swaps))
    (recomputed, none), (preempted, swapped) = counts
    assert recomputed > 0
    assert none == 0
    assert preempted > 0
    assert swapped > 0


@pytest.mark.usefixtures("swaps_are_cheap")
@pytest.mark.parametrize(
    ("tiny", "kv_type"),
    [
        (TinyOptions(format="Q8_0"), "bf16"),
        (TinyOptions(architecture="gemma3", layers=4, window=24, format="Q8_0"), "bf16"),
        (TinyOptions(architecture="qwen2", format="Q8_0", head_dim=32), "q8"),
        (TinyOptions(architecture="gemma3", layers=4, window=24, format="Q8_0", head_dim=32), "k8v4"),
        *((replace(TWO_SIZES, format="Q8_0"), kv_type) for kv_type in get_args(KVType)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.architecture} {value.window_head_dim or ''}",
)
def test_a_hundred_cases_on_the_kernels(
    tiny_gguf: Callable[[TinyOptions], TinyModel],
    tiny: TinyOptions,
    kv_type: KVType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(backend, "HostRunner", BytesRunner)
    path = tiny_gguf(tiny).path
    cases = make_cases(50, 150, tiny.vocab, seed=3)
    with LLM(path, max_model_len=256, enable_prefix_caching=False, kv_cache_dtype=kv_type) as single:
        use(single, recorder := Recorder())
        expected = [alone(single, case) for case in cases]
        token_bytes = KVLayout(single.loaded.spec, KV_FORMATS[kv_type]).token_bytes()
    few: dict[str, Any] = {"kv_cache_memory_bytes": token_bytes * 900, "max_num_seqs": 8}
    settings: list[tuple[int, int, str, Kind]] = [
        (0, 40, "live", "right"),
        (1 << 20, 300, "fixed", "wrong at the end"),
    ]
    for swap, rows, budget, kind in settings:
        with LLM(
            path,
            max_model_len=256,
            swap_space_bytes=swap,
            max_num_batched_tokens=rows,
            token_budget=budget,
            kv_cache_dtype=kv_type,
            **few,
        ) as llm:
            mislead(llm)
            use(llm, scripted := Scripted(kind, recorder.found, tiny.vocab))
            done = crowd(llm, cases, seed=4)
            assert done == {number: expected[number] for number in done}
            assert scripted.drafted > 100
