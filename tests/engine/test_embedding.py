"""Vectors of texts: what they are, and that company and chunks change no bit of them."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from tests.engine.conftest import MakeLLM
from tests.engine.mock import HIDDEN, hash_logits
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ContextLengthError
from twofold.core.params import SamplingParams
from twofold.core.step import Pooling
from twofold.engine.llm import LLM
from twofold.engine.prompts import TokensPrompt

TEXTS: list[TokensPrompt] = [{"prompt_token_ids": [(n * 31 + i * 7) % 290 for i in range(2 + 9 * n)]} for n in range(6)]


def test_the_mean_and_the_last_hidden_state(make_llm: MakeLLM) -> None:
    ids = list(TEXTS[2]["prompt_token_ids"])
    states = [hash_logits(np.array(ids[:length]), HIDDEN) for length in range(1, len(ids) + 1)]
    llm = make_llm(rows=8)
    mean = llm.embed(TEXTS[2], normalize=False)[0].embedding
    assert mean == pytest.approx(np.mean(states, axis=0), abs=1e-6)
    assert llm.embed(TEXTS[2], pooling="last", normalize=False)[0].embedding == pytest.approx(states[-1])
    unit = llm.embed(TEXTS[2])[0].embedding
    assert unit is not None
    assert sqrt(sum(value * value for value in unit)) == pytest.approx(1)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_company_chunks_and_caches_change_no_bit(make_llm: MakeLLM, pooling: Pooling) -> None:
    alone = [make_llm().embed(text, pooling=pooling)[0].embedding for text in TEXTS]
    llm = make_llm(seqs=4, rows=7)
    llm.generate(TEXTS, SamplingParams(max_tokens=4))
    assert [output.embedding for output in llm.embed(TEXTS, pooling=pooling)] == alone


def test_a_text_that_fills_the_context_has_a_vector(make_llm: MakeLLM) -> None:
    llm = make_llm(context=64)
    assert llm.embed({"prompt_token_ids": [5] * 64})[0].embedding is not None
    with pytest.raises(ContextLengthError, match="65 tokens"):
        llm.embed({"prompt_token_ids": [5] * 65})


def test_the_kernels_give_the_same_bits_in_any_company(
    tiny_gguf: Callable[[TinyOptions], TinyModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    path = tiny_gguf(TinyOptions(format="Q8_0")).path
    with LLM(path, max_model_len=256, threads=1) as single:
        alone = [single.embed(text)[0].embedding for text in TEXTS]
    with LLM(path, max_model_len=256, max_num_seqs=3, max_num_batched_tokens=11) as llm:
        assert [output.embedding for output in llm.embed(TEXTS)] == alone


@pytest.mark.model
def test_texts_on_one_subject_are_nearer_than_others(default_model: Path) -> None:
    texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose by two percent."]
    with LLM(default_model, max_model_len=512) as llm:
        cat, kitten, money = (np.array(output.embedding) for output in llm.embed(texts))
    assert cat @ kitten > cat @ money
    assert kitten @ cat > kitten @ money
