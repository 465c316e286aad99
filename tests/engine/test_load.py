"""A model file becomes an LLM: the tiny model on the NumPy reference."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.base import LoadableModel, RunnerSizes
from twofold.backends.cpu.weights import WeightStore
from twofold.backends.reference import ReferenceBackend
from twofold.backends.runner import HostRunner
from twofold.core.errors import ModelNotFoundError, ParameterError, ResourceError, TemplateError
from twofold.core.params import SamplingParams
from twofold.engine.config import EngineOptions
from twofold.engine.llm import LLM
from twofold.engine.load import load_model
from twofold.models.ops import TensorRef
from twofold.text.tokenizers.tokenizer import Tokenizer

Tiny = Callable[[TinyOptions], TinyModel]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written into the user's own cache."""
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))


def test_from_file_to_completion(tiny_gguf: Tiny) -> None:
    tiny = tiny_gguf(TinyOptions())
    with LLM(tiny.path, max_model_len=64, max_num_seqs=3, backend="reference") as llm:
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=1, ignore_eos=True)
        together = llm.generate(["the engine", "and", "a longer prompt of some words"], params)
        alone = [llm.generate(output.prompt, params)[0] for output in together if output.prompt]
        assert [a.outputs[0].token_ids for a in alone] == [t.outputs[0].token_ids for t in together]
        assert llm.config.context == 64
        assert llm.loaded.spec.name == "tiny llama"
        assert llm.chat([{"role": "user", "content": "hi"}], params)[0].outputs[0].token_ids


def test_chunks_of_any_size_give_the_same_distribution(tiny_gguf: Tiny) -> None:
    tiny = tiny_gguf(TinyOptions())
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for rows in (4, 32):
        options = {"max_model_len": 64, "max_num_seqs": 1, "max_num_batched_tokens": rows, "block_size": 4}
        with LLM(tiny.path, backend="reference", **options) as llm:  # type: ignore[arg-type]
            output = llm.generate({"prompt_token_ids": list(range(5, 25))}, params)[0]
        assert output.prompt_logprobs is not None
        found.append([next(iter(position.values())).logprob for position in output.prompt_logprobs[1:] if position])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)  # NumPy's own sums depend on the number of rows


def test_another_tokenizer(tiny_gguf: Tiny) -> None:
    tiny, larger = tiny_gguf(TinyOptions()), tiny_gguf(TinyOptions(vocab=320))
    options = EngineOptions(max_model_len=32, backend="reference")
    loaded = load_model(larger.path, options, tokenizer_path=tiny.path)
    assert (loaded.tokenizer.vocab_size, loaded.spec.vocab_size) == (300, 320)
    with pytest.raises(ParameterError, match="320 tokens, but the model has only 300"):
        load_model(tiny.path, options, tokenizer_path=larger.path)


def test_a_missing_model() -> None:
    with pytest.raises(ModelNotFoundError):
        LLM("/nowhere/model.gguf")


class RememberedBackend(ReferenceBackend):
    """The reference, with a runner that remembers whether it was closed."""

    closed: ClassVar[list[str]] = []

    def load(
        self,
        model: LoadableModel,
        sizes: RunnerSizes,
        overlap: Callable[[], object],
        draft: LoadableModel | None = None,
    ) -> HostRunner:
        runner = super().load(model, sizes, overlap, draft)
        runner.compile_s, runner.close = 0.25, self._close
        return runner

    def _close(self) -> None:
        self.closed.append(self.name)


def test_another_backend(tiny_gguf: Tiny) -> None:
    backend = RememberedBackend()
    loaded = load_model(tiny_gguf(TinyOptions()).path, EngineOptions(max_model_len=64), backend=backend)
    assert loaded.compile_s == 0.25
    with LLM.from_loaded(loaded) as llm:
        assert llm.generate("the engine", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids
    assert backend.closed == ["reference"]


def test_a_tokenizer_that_fails_ends_loading_with_its_error_and_no_thread(tiny_gguf: Tiny) -> None:
    before = set(threading.enumerate())
    options = EngineOptions(max_model_len=64, threads=2, chat_template="{% if %}")
    with pytest.raises(TemplateError):
        load_model(tiny_gguf(TinyOptions()).path, options)
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("twofold-")} - before


@pytest.mark.parametrize("lacking", ["twofold.backends.cpu.model.KVCache", "twofold.backends.cpu.model.StepRecord"])
def test_memory_that_lacks_ends_loading_with_its_error_and_no_thread(
    tiny_gguf: Tiny, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that stayed in machine code would be killed by a segmentation fault when Python ends."""

    def lacks(*_: object, **__: object) -> None:
        raise ResourceError("no memory")

    monkeypatch.setattr(lacking, lacks)
    before = set(threading.enumerate())
    with pytest.raises(ResourceError, match="no memory"):
        LLM(tiny_gguf(TinyOptions()).path, threads=3)
    assert set(threading.enumerate()) <= before


def test_a_model_that_is_never_closed_ends_with_python(tiny_gguf: Tiny) -> None:
    """Its threads end before the memory of their machine code is freed, also those of a program that has just run."""
    script = (
        "import atexit, sys, threading; from twofold import LLM, SamplingParams\n"
        "atexit.register(lambda: print(sum(t.name.startswith('twofold-') for t in threading.enumerate())))\n"
        f"llm = LLM({str(tiny_gguf(TinyOptions()).path)!r}, threads=3)\n"
        "llm.generate('in the', SamplingParams(max_tokens=3))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_tokenizer_is_made_once_while_the_weights_are_read(
    tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make, packing = Tokenizer.of, WeightStore.packing

    @contextmanager
    def noted(self: WeightStore, refs: Iterable[TensorRef]) -> Iterator[None]:
        with packing(self, refs):
            made.append("begin")
            yield
            made.append("end")

    def counted(*given: Any, **named: Any) -> Tokenizer:
        made.append("tokenizer")
        return make(*given, **named)

    monkeypatch.setattr(Tokenizer, "of", counted)
    monkeypatch.setattr(WeightStore, "packing", noted)
    load_model(tiny_gguf(TinyOptions()).path, EngineOptions(max_model_len=64)).close()
    assert made == ["begin", "tokenizer", "end"]
