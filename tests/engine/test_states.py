"""A model that keeps a state for each sequence: the same completions under everything at once, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import StateForward
from tests.engine.test_exactness import SHAPES, BytesRunner, alone, crowd, make_cases, mislead
from tests.planner.models import SMOLLM2_135M
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.model import ModelSpec, RecurrentAttention
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.step import MoveKind
from twofold.core.units import GIB
from twofold.engine.config import EngineOptions, check_draft, resolve
from twofold.engine.llm import LLM
from twofold.engine.prompts import TokensPrompt

RECURRENT = RecurrentAttention(heads=4, key_heads=2, key_dim=16, value_dim=16, conv=4)
STATE = 4 * (4 * 16 * 16 + 3 * (2 * 2 * 16 + 4 * 16))
"""Its bytes in one layer."""


def hybrid() -> ModelSpec:
    """Every third layer of SmolLM2 attends; the others keep a state."""
    layers = SMOLLM2_135M.layers
    return replace(
        SMOLLM2_135M,
        layers=tuple(each if i % 3 == 2 else replace(each, attention=RECURRENT) for i, each in enumerate(layers)),
    )


def mock(llm: LLM) -> StateForward:
    runner: Any = llm.loaded.runner
    assert isinstance(runner.forward, StateForward)
    return runner.forward


@pytest.mark.usefixtures("swaps_are_cheap")
def test_hundreds_of_completions_with_states(make_llm: MakeLLM) -> None:
    """Pauses, cancellations, both kinds of preemption, several completions, and samples that wait for their masks."""
    cases = make_cases(80, 40, VOCAB, seed=1)
    single = make_llm(seqs=4, rows=96, blocks=400, context=96, states=0)
    expected = [alone(single, case) for case in cases]
    for shape in SHAPES:
        llm = make_llm(runner=BytesRunner, states=min(shape.get("host_slots", 0), 4), **shape)
        mislead(llm)
        done = crowd(llm, cases, seed=2)
        assert done == {number: expected[number] for number in done}, shape
        scheduler, moved = llm.engine.scheduler, mock(llm).moved
        assert scheduler.swaps == moved[MoveKind.OUT] >= moved[MoveKind.IN]
        assert (scheduler.swaps > 0) is ("host_slots" in shape)
        assert scheduler.preemptions > 0 or shape["blocks"] == 400
        assert scheduler.manager.counters.hits == 0


def test_beams_fork_their_states(make_llm: MakeLLM) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=12)
    prompts: list[TokensPrompt] = [{"prompt_token_ids": list(range(n, 3 * n))} for n in range(3, 9)]
    single = [make_llm(states=0).beam_search(prompt, params)[0].outputs for prompt in prompts]
    llm = make_llm(blocks=40, seqs=6, rows=9, states=4)
    assert [output.outputs for output in llm.beam_search(prompts, params)] == single
    assert mock(llm).moved[MoveKind.COPY] > 10


def test_prefixes_are_not_shared(make_llm: MakeLLM) -> None:
    """The second of two equal prompts, and each of three completions of one, computes all of its prompt."""
    llm = make_llm(states=0, caching=True)
    prompt: TokensPrompt = {"prompt_token_ids": list(range(3, 33))}
    for params in (SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, n=3)):
        llm.generate(prompt, params)
    counters = llm.engine.scheduler.manager.counters
    assert (counters.queries, counters.hits) == (0, 0)
    assert mock(llm).moved[MoveKind.COPY] == 0


def test_sizes_of_a_hybrid() -> None:
    """States of all sequences come first; what is left are blocks of the layers that attend."""
    spec, options = hybrid(), EngineOptions(max_num_seqs=8, kv_cache_memory_bytes=GIB, swap_space_bytes=GIB // 4)
    paged, states = resolve(options, spec, 64 * GIB, 64).kv_groups
    assert (states.blocks, states.host_slots, states.state, paged.state) == (8, 2, True, False)
    block = 16 * 10 * 2 * 3 * 64 * 2
    assert paged.blocks == min((GIB - 8 * 20 * STATE) // block, paged.blocks)
    few = replace(options, kv_cache_memory_bytes=8 * 20 * STATE + 40 * block, max_model_len=16 * 40)
    assert resolve(few, spec, 64 * GIB, 64).kv_groups[0].blocks == 40
    with pytest.raises(ResourceError, match="The KV cache of one sequence"):
        resolve(replace(few, max_num_seqs=9), spec, 64 * GIB, 64)


def test_what_cannot_go_together_with_states_is_refused() -> None:
    spec = hybrid()
    with pytest.raises(ParameterError, match="prefixes are not cached: a KV store would stay empty") as caught:
        resolve(EngineOptions(kv_store="store"), spec, 64 * GIB, 64)
    assert caught.value.param == "kv_store"
    with pytest.raises(ParameterError, match="rejected drafts could not be taken back") as caught:
        check_draft(spec, 256)
    assert caught.value.param == "speculative_config"
