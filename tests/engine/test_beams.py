"""Beam search finds what a search over whole prefixes finds, and shares blocks on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import hash_logits
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams
from twofold.engine.prompts import TokensPrompt

PROMPT: TokensPrompt = {"prompt_token_ids": [10, 11, 12, 13, 14]}
Answer = tuple[tuple[int, ...], float]


def logprobs(context: Sequence[int]) -> NDArray[np.float64]:
    logits = hash_logits(np.array(context), VOCAB).astype(np.float64)
    row: NDArray[np.float64] = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return row


def search(prompt: list[int], params: BeamSearchParams, ends: frozenset[int]) -> list[Answer]:
    """The plain algorithm: every beam's whole context anew in each round, no early end."""
    width = params.beam_width
    live: list[Answer] = [((), 0.0)]
    done: list[Answer] = []
    for length in range(1, params.max_tokens + 1):
        grown: list[Answer] = []
        for tokens, score in live:
            row = logprobs([*prompt, *tokens])
            best = np.lexsort((np.arange(VOCAB), -row))[: 2 * width]
            grown += [((*tokens, int(token)), score + float(row[token])) for token in best]
        grown.sort(key=lambda one: -one[1])
        grown = grown[: 2 * width]
        done += [one for one in grown if one[0][-1] in ends or length == params.max_tokens]
        live = [one for one in grown if one[0][-1] not in ends][:width] if length < params.max_tokens else []
    done.sort(key=lambda one: -one[1] / len(one[0]) ** params.length_penalty)
    return done[:width]


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize("caching", [True, False])
def test_beams_are_those_of_the_plain_search(make_llm: MakeLLM, width: int, penalty: float, caching: bool) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=6, length_penalty=penalty)
    llm = make_llm(caching=caching)
    output = llm.beam_search(PROMPT, params)[0]
    expected = search(list(PROMPT["prompt_token_ids"]), params, llm.get_tokenizer().eos_ids)
    assert [answer.token_ids for answer in output.outputs] == [tokens for tokens, _ in expected]
    assert [answer.cumulative_logprob for answer in output.outputs] == pytest.approx([s for _, s in expected], abs=1e-4)


def test_beams_are_the_same_beside_others_and_with_few_blocks(make_llm: MakeLLM) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=12)
    prompts: list[TokensPrompt] = [{"prompt_token_ids": list(range(n, 3 * n))} for n in range(3, 9)]
    alone = [make_llm().beam_search(prompt, params)[0].outputs for prompt in prompts]
    crowd = make_llm(blocks=40, seqs=6, rows=9).beam_search(prompts, params)
    assert [output.outputs for output in crowd] == alone


def test_beams_share_the_blocks_of_common_prefixes(make_llm: MakeLLM) -> None:
    """Eight beams of a prompt of 40 tokens in 40 positions more than the prompt takes."""
    llm = make_llm(blocks=10 + 8 * 2, block_size=4, caching=False)
    output = llm.beam_search({"prompt_token_ids": list(range(40))}, BeamSearchParams(beam_width=8, max_tokens=4))[0]
    assert len(output.outputs) == 8
    assert output.report.record.preemptions == 0


def test_a_beam_search_reports_finish_reasons(make_llm: MakeLLM) -> None:
    llm = make_llm()
    output = llm.beam_search(PROMPT, BeamSearchParams(beam_width=3, max_tokens=4))[0]
    assert output.finished
    for answer in output.outputs:
        ended = answer.token_ids[-1] in llm.get_tokenizer().eos_ids
        assert answer.finish_reason == ("stop" if ended else "length")


@pytest.mark.parametrize("wrong", [{"beam_width": 0}, {"max_tokens": 0}, {"length_penalty": float("nan")}])
def test_impossible_parameters(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **wrong})  # type: ignore[arg-type]
    assert caught.value.param == next(iter(wrong))
