"""A draft model beside its target: the same bits, what is refused, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.drafts import ModelDraftCounts, draft_config, eager_drafts, use
from tests.engine.test_exactness import BytesRunner, alone, crowd, make_cases, mislead
from tests.support.gguf_writer import write_gguf
from tests.support.tiny import TWO_SIZES, TinyModel, TinyOptions, tiny_metadata, tiny_tensors
from twofold.backends.cpu import backend
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import KVLayout
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.values import FP16
from twofold.engine.config import EngineOptions, SpeculativeConfig
from twofold.engine.llm import LLM
from twofold.engine.load import load_model
from twofold.engine.scheduler import blocks
from twofold.engine.scheduler.draft_model import ModelDrafts, passes
from twofold.engine.scheduler.speculation import Speculator
from twofold.fleet.memory import plan_of
from twofold.models.ops import Batch

Tiny = Callable[[TinyOptions], TinyModel]
TARGET = TinyOptions(format="Q8_0", layers=3)
DRAFT = replace(TARGET, layers=1)
"""The first layer of the target: it agrees sometimes."""
SMALLER = replace(TWO_SIZES, layers=2, kv_heads=(2, 1), windowed=(True, False), format="Q8_0")
"""Two layers that keep different things: two KV groups in the blocks of the target's first one."""


def config(draft: TinyModel | Path | str) -> dict[str, Any]:
    return draft_config(draft.path if isinstance(draft, TinyModel) else draft)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 0.0)
    with eager_drafts(seed=7):
        yield


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (TARGET, DRAFT),
        (TinyOptions(architecture="gemma3", layers=6, window=24, format="Q8_0"), replace(DRAFT, vocab=290)),
        (replace(TWO_SIZES, format="Q8_0"), SMALLER),
    ],
    ids=["llama", "windows and padding", "two head sizes"],
)
def test_a_hundred_cases_on_the_kernels(
    tiny_gguf: Tiny, target: TinyOptions, draft: TinyOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Chunks, prefix hits, both kinds of preemption, penalties, n > 1 and log-probabilities, every step as bytes."""
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(backend, "HostRunner", BytesRunner)
    path, smaller = tiny_gguf(target).path, tiny_gguf(draft)
    cases = make_cases(50, 150, target.vocab, seed=3)
    with LLM(path, max_model_len=256, enable_prefix_caching=False) as single:
        use(single, None)
        expected = [alone(single, case) for case in cases]
        token_bytes = KVLayout(single.loaded.spec, FP16).token_bytes()
    few: dict[str, Any] = {"kv_cache_memory_bytes": token_bytes * 1200, "max_num_seqs": 8, "max_model_len": 256}
    for swap, rows, budget in ((0, 40, "live"), (1 << 20, 300, "fixed")):
        with LLM(
            path, swap_space_bytes=swap, max_num_batched_tokens=rows, token_budget=budget, **few, **config(smaller)
        ) as llm:
            mislead(llm)
            drafted = ModelDraftCounts(llm)
            done = crowd(llm, cases, seed=4)
            assert done == {number: expected[number] for number in done}
            assert drafted.drafts > 100
            assert drafted.rows > 100


@pytest.mark.usefixtures("eager")
def test_structured_output(tiny_gguf: Tiny) -> None:
    """A constrained completion gets no drafts of the model; others do."""
    target, draft = tiny_gguf(replace(TARGET, layers=2)), tiny_gguf(DRAFT)
    free = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=1)
    grammar = StructuredOutputsParams(regex="[a-z ]{8,16}")
    bound = SamplingParams(temperature=0.8, seed=4, max_tokens=24, structured_outputs=grammar)
    found = []
    for options in ({}, config(draft)):
        with LLM(target.path, max_model_len=64, **options) as llm:
            drafted = ModelDraftCounts(llm)
            outputs = [llm.generate("abc", params)[0].outputs for params in (free, bound, free)]
            found.append(outputs)
    assert found[0] == found[1]
    assert drafted.drafts > 10


def test_nothing_is_left_after_the_last_request(tiny_gguf: Tiny) -> None:
    """Without a change of the policy, for a target of many layers."""
    same = replace(TARGET, layers=1, ffn=64)
    target, draft = tiny_gguf(replace(same, layers=8)), tiny_gguf(same)
    with LLM(target.path, max_model_len=512, **config(draft)) as llm:
        (model,) = [each for each in llm.engine.scheduler.features if isinstance(each, ModelDrafts)]
        assert llm.loaded.draft_ratio < 0.6
        llm.generate([{"prompt_token_ids": range(3, 40)}] * 2, SamplingParams(max_tokens=60, ignore_eos=True, seed=1))
        llm.engine.check_idle()
        assert not model._covered


def test_what_is_refused(tiny_gguf: Tiny, tmp_path: Path) -> None:
    target, larger = tiny_gguf(TARGET), tiny_gguf(replace(TARGET, layers=4))
    other = tmp_path / "other.gguf"
    metadata = tiny_metadata(DRAFT)
    texts = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    texts[200], texts[201] = texts[201], texts[200]
    write_gguf(other, metadata | {"tokenizer.ggml.tokens": texts}, tiny_tensors(DRAFT))
    strange = tmp_path / "strange.gguf"
    write_gguf(strange, metadata | {"general.architecture": "strange"}, tiny_tensors(DRAFT))
    for path, why in (
        (target.path, "is the target itself"),
        (larger.path, "parameters, and its target only"),
        (other, "another vocabulary than its target: its token 200 is"),
        (strange, "cannot run"),
    ):
        with pytest.raises(ParameterError, match=why) as caught:
            LLM(target.path, max_model_len=64, **config(path))
        assert caught.value.param == "speculative_config"
        assert "smaller model" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "given", [{"method": "draft_model"}, {"method": "suffix", "model": "x"}, {"model": ""}, {"modle": "x"}]
)
def test_a_method_without_its_model(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^speculative_config(\.model)? "):
        EngineOptions(speculative_config=given)


def test_a_model_names_its_method() -> None:
    assert SpeculativeConfig(model="x") == SpeculativeConfig(method="draft_model", model="x")
    assert SpeculativeConfig() == SpeculativeConfig(method="auto")


def test_memory_counts_its_layers_and_its_weights(tiny_gguf: Tiny) -> None:
    target, draft = tiny_gguf(TARGET), tiny_gguf(DRAFT)
    options = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 20}
    plain = load_model(target.path, EngineOptions(**options))  # type: ignore[arg-type]
    paired = load_model(target.path, EngineOptions(**options, **config(draft)))  # type: ignore[arg-type]
    assert paired.config.kv_blocks == pytest.approx(plain.config.kv_blocks * 3 / 4, abs=1)
    both = [plan_of(loaded.config, loaded.spec, loaded.nbytes) for loaded in (plain, paired)]
    assert both[0].kv_cache == pytest.approx(both[1].kv_cache, rel=0.01)
    assert both[1].weights > both[0].weights
    for loaded in (plain, paired):
        loaded.close()


def test_a_shared_prefix_is_computed_once_by_the_draft_model(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Speculator, "_catches_up", lambda *_: True)
    target, draft = tiny_gguf(TARGET), tiny_gguf(DRAFT)
    prompt = list(range(3, 3 + 129))
    with LLM(target.path, max_model_len=512, **config(draft)) as llm:
        drafted = ModelDraftCounts(llm)
        rows = []
        for seed in range(4):
            before = drafted.rows
            params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True, temperature=1)
            llm.generate({"prompt_token_ids": prompt}, params)
            rows.append(drafted.rows - before)
        assert rows[0] > 100 or rows[1] > 100  # the first steps of an engine teach it their times
        assert rows[3] < 60


def test_passes_have_the_rows_that_the_runner_computes(tiny_gguf: Tiny) -> None:
    assert passes([]) == []
    target, draft = tiny_gguf(TARGET), tiny_gguf(DRAFT)
    with LLM(target.path, max_model_len=128, **config(draft)) as llm:
        rows: list[int] = []
        runner: Any = llm.loaded.runner
        run = runner.draft._forward.run

        def counted(batch: Batch) -> Any:
            rows.append(len(batch.tokens))
            return run(batch)

        runner.draft._forward.run = counted
        planned: list[int] = []
        llm.engine.watch_plans(lambda plan: planned.extend(shape.rows for shape in passes(plan.steps)))
        params = SamplingParams(max_tokens=40, ignore_eos=True, seed=5)
        llm.generate([{"prompt_token_ids": [5, 6, number]} for number in range(3, 7)], params)
        assert rows == planned
