"""The engine on the CPU kernels: a tiny model always, the default model where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput

PROMPTS = ["the engine and the model", "a", "one two three four five six seven eight nine ten " * 4, "in to the"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=6, logprobs=2),
    SamplingParams(seed=1, max_tokens=8, n=2, logprobs=0),
    SamplingParams(seed=2, max_tokens=5, top_p=0.9, prompt_logprobs=1),
    SamplingParams(seed=3, max_tokens=7, top_k=12, repetition_penalty=1.2),
]
SHAPES: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 2, "max_num_batched_tokens": 7},
    {"threads": 1, "block_size": 32},
]


@pytest.fixture(scope="module", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of machine code for all tests here; nothing is written into the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def answers(path: Path, together: bool, **options: Any) -> list[tuple[object, ...]]:
    with LLM(path, max_model_len=256, **options) as llm:
        if together:
            outputs = llm.generate(PROMPTS, PARAMS)
        else:
            outputs = [llm.generate(prompt, params)[0] for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        llm.engine.check_idle()
    return [content(output) for output in outputs]


def content(output: RequestOutput) -> tuple[object, ...]:
    return output.prompt_token_ids, output.prompt_logprobs, output.outputs


def check_all_shapes(path: Path) -> None:
    alone = answers(path, together=False)
    for shape in SHAPES:
        assert answers(path, together=True, **shape) == alone, shape


def test_a_tiny_model_answers_the_same_in_every_shape(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    check_all_shapes(tiny_gguf(TinyOptions(format="Q8_0")).path)


@pytest.mark.model
def test_the_default_model_answers_the_same_in_every_shape(default_model: Path) -> None:
    check_all_shapes(default_model)


@pytest.mark.model
def test_the_default_model_knows_paris(default_model: Path) -> None:
    with LLM(default_model, max_model_len=64) as llm:
        output = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=3))[0]
        assert output.outputs[0].text.startswith(" Paris")
        assert llm.loaded.load_s > 0


def test_impossible_hardware_choices(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    path = tiny_gguf(TinyOptions()).path
    for options in ({"block_size": 8}, {"isa": "avx513"}):
        with pytest.raises(ParameterError) as caught:
            LLM(path, **options)
        assert caught.value.param == next(iter(options))
