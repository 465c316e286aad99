"""An LLM over the mock model and a real tokenizer of bytes and a few words; everything in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.mock import MockForward, StateForward
from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.backends.runner import HostRunner
from twofold.backends.sampling.base import NumpyRows
from twofold.backends.sampling.sampler import Sampler
from twofold.core.clock import Clock
from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.engine.config import DEFAULT_STORE_BYTES, EngineConfig, EngineOptions, runner_sizes
from twofold.engine.kv.manager import GroupSize
from twofold.engine.kv_folder import open_folder
from twofold.engine.llm import LLM
from twofold.engine.load import LoadedModel
from twofold.engine.scheduler import blocks as scheduler_blocks
from twofold.engine.scheduler.budget import StepLimits
from twofold.text.tokenizers.tokenizer import Tokenizer

VOCAB = 300
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
MakeLLM = Callable[..., LLM]
MakeLoaded = Callable[..., LoadedModel]


def tiny_spec(context: int = 64, vocab: int = VOCAB) -> ModelSpec:
    """A description that only its sizes matter of."""
    return ModelSpec("mock", 8, vocab, context, (LayerSpec(GroupedAttention(2, 1, 4), GatedFFN(8)),) * 2)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tokenizer_of({**tokenizer_metadata(VOCAB), "tokenizer.chat_template": CHAT_TEMPLATE})


@pytest.fixture
def make_loaded(tokenizer: Tokenizer) -> MakeLoaded:
    """``make_loaded(seqs=8, rows=64, …)``: a loaded mock. The budget is fixed: mock steps take no time to speak of.
    With ``states`` host slots it keeps a state for each sequence."""

    def make(
        *,
        seqs: int = 8,
        rows: int = 64,
        logit_rows: int = 64,
        blocks: int = 128,
        host_slots: int = 0,
        block_size: int = 4,
        context: int = 64,
        caching: bool = True,
        overlap: bool = True,
        max_waiting: int = 1000,
        forward: Any = None,
        runner: type[HostRunner] = HostRunner,
        store: Path | None = None,
        store_bytes: int = 1 << 30,
        stop_loops: bool = False,
        states: int | None = None,
    ) -> LoadedModel:
        sizes = {"blocks": blocks, "block_size": block_size, "max_rows": rows, "max_logit_rows": logit_rows}
        if states is not None and forward is None:
            forward = StateForward(vocab=VOCAB, states=seqs, **sizes)
        mock = forward or MockForward(vocab=VOCAB, **sizes)
        options = EngineOptions(
            block_size=block_size,
            kv_cache_dtype="f32",
            enable_prefix_caching=caching,
            token_budget="fixed",
            max_waiting_seqs=max_waiting,
            overlap=overlap,
            stop_loops=stop_loops,
            kv_store=store,
            kv_store_bytes=DEFAULT_STORE_BYTES if store is None else store_bytes,
        )
        groups = [GroupSize(None, blocks, host_slots)]
        if states is not None:
            groups.append(GroupSize(None, seqs, states, state=True))
        config = EngineConfig(options, context, StepLimits(seqs, rows, logit_rows), tuple(groups))
        return LoadedModel(
            runner(mock, Sampler(NumpyRows()), runner_sizes(config)),
            tokenizer,
            tiny_spec(context),
            config,
            store=None if store is None else open_folder(store, lambda: b"mock" * 8, "mock"),
        )

    return make


@pytest.fixture
def swaps_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of so small a model are cheaper than moving blocks; where there are host slots they shall be used."""
    monkeypatch.setattr(scheduler_blocks, "BLOCK_SECONDS", 0.0)


@pytest.fixture
def make_llm(make_loaded: MakeLoaded) -> Iterator[MakeLLM]:
    """An LLM over what ``make_loaded`` makes; at the end each must be idle and hold nothing."""
    made: list[LLM] = []

    def make(*, clock: Clock | None = None, **options: Any) -> LLM:
        made.append(LLM.from_loaded(make_loaded(**options), clock))
        return made[-1]

    yield make
    for llm in made:
        assert llm.engine.waiting == llm.engine.scheduler.running == 0
        llm.close()
        llm.engine.check_idle()
