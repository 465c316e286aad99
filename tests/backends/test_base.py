"""A backend that is added as ``docs/extend/backend.md`` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.tiny import TinyModel, TinyOptions
from twofold import LLM, SamplingParams
from twofold.backends import base as registry
from twofold.backends.base import Backend, LoadableModel, RunnerSizes
from twofold.backends.dequantize import dequantize
from twofold.backends.reference import NumpyOps, PagedCache
from twofold.backends.runner import HostRunner
from twofold.backends.sampling.base import NumpyRows
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.step import BlockMove
from twofold.formats.base import ModelFile
from twofold.models.bind import ModelWeights
from twofold.models.decoder import forward
from twofold.models.ops import Batch, Forward

Floats = NDArray[np.float32]


class ToyForward(Forward):
    """The decoder on NumPy arrays; it counts the rows that it computes."""

    cache: PagedCache

    def __init__(self, file: ModelFile, spec: ModelSpec, weights: ModelWeights, sizes: RunnerSizes) -> None:
        self.vocab_size, self.hidden_size = spec.vocab_size, spec.hidden_size
        self.max_rows = self.max_logit_rows = sizes.rows
        self.hidden: Floats = np.zeros((0, spec.hidden_size), np.float32)
        self.rows = 0
        groups = spec.kv_groups(sizes.context)
        self.cache = PagedCache(groups, sizes.blocks, sizes.block_size, host_slots=sizes.host_slots)
        infos = file.tensors.items()
        self._weights = {name: dequantize(file.data(name), info.format, info.columns) for name, info in infos}
        self._decode = partial(forward, spec=spec, weights=weights)

    def run(self, batch: Batch) -> Floats:
        self.rows += len(batch.tokens)
        logits, self.hidden = self._decode(NumpyOps(self._weights, self.cache, batch))
        return logits

    def move(self, moves: Sequence[BlockMove]) -> None:
        self.cache.move(moves)


@dataclass(frozen=True, slots=True)
class ToyBackend(Backend):
    """``Backend`` with one option."""

    threads: int | None = None
    name: ClassVar[str] = "toy"
    device: ClassVar[str] = "a toy"
    forwards: ClassVar[list[ToyForward]] = []

    def free_memory(self) -> int:
        return 1 << 30

    def load(
        self,
        model: LoadableModel,
        sizes: RunnerSizes,
        overlap: Callable[[], object],
        draft: LoadableModel | None = None,
    ) -> HostRunner:
        del overlap  # it need not be called
        assert draft is None
        self.forwards.append(ToyForward(model.file, model.spec, model.weights, sizes))
        return HostRunner(self.forwards[-1], Sampler(NumpyRows()), sizes)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "toy", f"{__name__}:ToyBackend")


@pytest.mark.usefixtures("toy")
def test_an_added_backend_gives_the_tokens_of_the_reference(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    path, params = str(tiny_gguf(TinyOptions()).path), SamplingParams(temperature=0.7, top_k=20, seed=3, max_tokens=8)
    tokens = []
    for name in ("toy", "reference"):
        with LLM(path, backend=name, backend_options={"threads": 2} if name == "toy" else {}) as llm:
            tokens.append(llm.generate("abc", params)[0].outputs[0].token_ids)
    assert tokens[0] == tokens[1]
    assert ToyBackend.forwards[-1].rows >= 8


@pytest.mark.usefixtures("toy")
def test_an_option_that_a_backend_lacks_is_refused_by_name() -> None:
    assert registry.open_backend("toy", {"threads": 2, "isa": None}) == ToyBackend(threads=2)
    with pytest.raises(ParameterError, match="The toy backend has no option isa"):
        registry.open_backend("toy", {"isa": "avx2"})
    with pytest.raises(ParameterError, match="must be cpu, reference or toy"):
        registry.open_backend("tay", {})
