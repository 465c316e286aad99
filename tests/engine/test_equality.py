"""Completions are exact: tokens and log-probabilities are the same alone, in any batch and in any chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import hash_logits
from twofold.core.params import SamplingParams
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt

KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"seed": 3, "logprobs": 0},
    {"seed": 4, "top_k": 7, "logprobs": 1},
    {"seed": 5, "top_p": 0.8, "temperature": 1.5},
    {"seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 1},
    {"seed": 7, "min_p": 0.05, "prompt_logprobs": 2},
    {"temperature": 0, "prompt_logprobs": 0, "logit_bias": {5: 3.0}, "min_tokens": 4},
    {"seed": 8, "n": 3},
]


def prompt_of(length: int, start: int) -> TokensPrompt:
    return {"prompt_token_ids": [(start * 37 + index * 11) % VOCAB for index in range(length)]}


def content(output: RequestOutput) -> tuple[object, ...]:
    """All of an output but its id and its times."""
    return output.prompt_token_ids, output.prompt_logprobs, output.outputs


def requests(lengths: Sequence[int]) -> tuple[list[TokensPrompt], list[SamplingParams]]:
    prompts = [prompt_of(length, index) for index, length in enumerate(lengths)]
    return prompts, [SamplingParams(max_tokens=6, **KINDS[index % len(KINDS)]) for index in range(len(lengths))]


@pytest.fixture
def alone(make_llm: MakeLLM) -> list[RequestOutput]:
    """Each request in an engine of its own, in whole prompts."""
    prompts, params = requests(LENGTHS)
    return [make_llm(seqs=3).generate(p, s)[0] for p, s in zip(prompts, params, strict=True)]


LENGTHS = [1, 3, 17, 40, 9, 26, 12, 5, 33, 2]


def test_greedy_follows_the_logits_of_its_own_context(make_llm: MakeLLM) -> None:
    output = make_llm().generate(prompt_of(13, 2), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))[0]
    context = list(output.prompt_token_ids)
    for token in output.outputs[0].token_ids:
        assert token == int(np.argmax(hash_logits(np.array(context), VOCAB)))
        context.append(token)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seqs=st.integers(3, 9),
    rows=st.integers(9, 64),
    logit_rows=st.integers(9, 64),
    blocks=st.integers(24, 60),
    block_size=st.sampled_from([2, 3, 16]),
    order=st.permutations(range(len(LENGTHS))),
)
def test_batches_and_chunks_change_nothing(
    make_llm: MakeLLM,
    alone: list[RequestOutput],
    seqs: int,
    rows: int,
    logit_rows: int,
    blocks: int,
    block_size: int,
    order: list[int],
) -> None:
    llm = make_llm(seqs=seqs, rows=rows, logit_rows=logit_rows, blocks=blocks, block_size=block_size)
    prompts, params = requests(LENGTHS)
    together = llm.generate([prompts[index] for index in order], [params[index] for index in order])
    assert [content(output) for output in together] == [content(alone[index]) for index in order]


def test_chunks_are_really_made(make_llm: MakeLLM) -> None:
    llm = make_llm(seqs=2, rows=7, logit_rows=2)
    llm.generate([prompt_of(40, 1), prompt_of(30, 2)], SamplingParams(max_tokens=2, ignore_eos=True))
    runner: Any = llm.loaded.runner
    assert runner.forward.widest == 7
    assert runner.forward.batches >= 10


def test_a_cancelled_neighbour_changes_nothing(make_llm: MakeLLM, alone: list[RequestOutput]) -> None:
    llm = make_llm(seqs=4, rows=16)
    prompts, params = requests(LENGTHS)
    other = llm.stream(prompt_of(30, 77), SamplingParams(max_tokens=30, ignore_eos=True))
    next(other)
    stream = llm.stream(prompts[3], params[3])
    deltas = [next(stream)]
    other.close()  # type: ignore[attr-defined] # a generator
    deltas += list(stream)
    assert deltas[-1].request is not None
    assert content(deltas[-1].request) == content(alone[3])


def test_requests_without_a_seed_repeat_from_run_to_run_and_differ_from_each_other(make_llm: MakeLLM) -> None:
    runs = [
        [
            output.outputs[0].token_ids
            for output in make_llm().generate([prompt_of(5, 1)] * 4, SamplingParams(max_tokens=8, temperature=2))
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 4


def test_completions_of_one_request_differ_and_the_first_is_that_of_n_1(make_llm: MakeLLM) -> None:
    several = make_llm().generate(prompt_of(5, 1), SamplingParams(n=4, seed=11, temperature=2, max_tokens=8))[0]
    single = make_llm().generate(prompt_of(5, 1), SamplingParams(seed=11, temperature=2, max_tokens=8))[0]
    assert len({output.token_ids for output in several.outputs}) == 4
    assert several.outputs[0] == single.outputs[0]
    assert [output.index for output in several.outputs] == [0, 1, 2, 3]
