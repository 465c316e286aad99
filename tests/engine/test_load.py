"""A model file becomes an LLM: the tiny model on the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ModelNotFoundError, ParameterError
from twofold.core.model import ModelSpec
from twofold.core.params import SamplingParams
from twofold.engine.config import EngineConfig, EngineOptions
from twofold.engine.llm import LLM
from twofold.engine.load import BuildForward, BuiltForward, load_model
from twofold.formats.gguf import GGUFFile
from twofold.models.bind import ModelWeights
from twofold.models.decoder import forward
from twofold.ops.reference import PagedCache, ReferenceModel
from twofold.sampling.numpy_rows import NumpyRows

Tiny = Callable[[TinyOptions], TinyModel]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written into the user's own cache."""
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))


def reference_build(tiny: TinyModel, closed: list[str]) -> BuildForward:
    """Runs ``tiny`` on the reference; ``closed`` hears when it is let go."""

    def build(file: GGUFFile, spec: ModelSpec, weights: ModelWeights, config: EngineConfig) -> BuiltForward:
        assert file.path == tiny.path
        groups = spec.kv_groups(config.context)
        cache = PagedCache(groups, [config.kv_blocks] * len(groups), config.block_size, spec.attention.kv_size)
        decode = partial(forward, spec=spec, weights=weights)
        model = ReferenceModel(decode, tiny.weights, cache, spec.vocab_size, spec.hidden_size, config.limits.rows)
        return BuiltForward(model, NumpyRows(), compile_s=0.25, close=lambda: closed.append(spec.name))

    return build


def test_from_file_to_answer(tiny_gguf: Tiny) -> None:
    tiny, closed = tiny_gguf(TinyOptions()), list[str]()
    with LLM(tiny.path, max_model_len=64, max_num_seqs=3, build=reference_build(tiny, closed)) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=1, ignore_eos=True)
        together = llm.generate(["the engine", "and", "a longer prompt of some words"], params)
        alone = [llm.generate(output.prompt, params)[0] for output in together if output.prompt]
        assert [a.outputs[0].token_ids for a in alone] == [t.outputs[0].token_ids for t in together]
        assert llm.config.context == 64
        assert llm.loaded.compile_s == 0.25
        assert llm.loaded.spec.name == "tiny llama"
        assert llm.chat([{"role": "user", "content": "hi"}], params)[0].outputs[0].token_ids
    assert closed == ["tiny llama"]


def test_chunks_of_any_size_give_the_same_distribution(tiny_gguf: Tiny) -> None:
    tiny = tiny_gguf(TinyOptions())
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for rows in (4, 32):
        options = {"max_model_len": 64, "max_num_seqs": 1, "max_num_batched_tokens": rows, "block_size": 4}
        with LLM(tiny.path, build=reference_build(tiny, []), **options) as llm:  # type: ignore[arg-type]
            output = llm.generate({"prompt_token_ids": list(range(5, 25))}, params)[0]
        assert output.prompt_logprobs is not None
        found.append([next(iter(position.values())).logprob for position in output.prompt_logprobs[1:] if position])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)  # NumPy's own sums depend on the number of rows


def test_another_tokenizer(tiny_gguf: Tiny) -> None:
    tiny, larger = tiny_gguf(TinyOptions()), tiny_gguf(TinyOptions(vocab=320))
    build = reference_build(larger, [])
    loaded = load_model(larger.path, EngineOptions(max_model_len=32), build, tokenizer_path=tiny.path)
    assert (loaded.tokenizer.vocab_size, loaded.spec.vocab_size) == (300, 320)
    with pytest.raises(ParameterError, match="320 tokens, the model knows 300"):
        load_model(tiny.path, EngineOptions(), build, tokenizer_path=larger.path)


def test_a_model_that_is_not_there(tiny_gguf: Tiny) -> None:
    with pytest.raises(ModelNotFoundError):
        LLM("/nowhere/model.gguf", build=reference_build(tiny_gguf(TinyOptions()), []))
