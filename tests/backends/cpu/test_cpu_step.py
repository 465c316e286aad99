"""The CPU model step by step: calls of machine code, limits of a batch, memory that is given back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.backends.cpu.conftest import ISAS
from tests.backends.cpu.test_cpu_program import ALL_KINDS, SIZES, batch_of
from tests.support.cpu import cpu_model
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.base import LoadableModel
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.model import CpuModel
from twofold.backends.reference import ReferenceBackend
from twofold.core.errors import UnsupportedModelError
from twofold.core.model import Attention, LatentAttention, RecurrentAttention
from twofold.formats.base import open_model
from twofold.models.decoder import forward
from twofold.models.ops import Batch
from twofold.models.read import read_model

Make = Callable[[TinyOptions], TinyModel]
Compilers = Callable[[str], Compiler]


@pytest.fixture
def model(tiny_gguf: Make, compiler_for: Compilers) -> Iterator[CpuModel]:
    with cpu_model(tiny_gguf(ALL_KINDS["llama"]).path, compiler_for(ISAS[0]), SIZES) as made:
        yield made


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Calls of a method from now on."""
    calls: list[object] = []
    method = getattr(owner, name)

    def count(*args: object) -> object:
        calls.append(args)
        return method(*args)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_a_step_is_one_call_of_machine_code(model: CpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call; a second only where a parked member had to be woken before the caller begins."""
    started, woken, ran = (counted(monkeypatch, model.pool, name) for name in ("_start", "_wake_all", "_run"))
    for position in range(5, 25):
        model.run(batch_of((position, 1)))
    assert len(started) == 20
    assert len(ran) == len(woken)


def test_too_large_a_batch_is_refused(model: CpuModel) -> None:
    model.run(batch_of((0, 64)))
    with pytest.raises(AssertionError):
        model.run(batch_of((0, 65)))
    with pytest.raises(AssertionError):
        model.run(batch_of(*[(0, 1)] * 9))


@pytest.mark.parametrize("options", [TinyOptions(hidden=24), TinyOptions(ffn=24), TinyOptions(head_dim=24)])
def test_sizes_that_vectors_do_not_divide_are_refused(
    options: TinyOptions, tiny_gguf: Make, compiler_for: Compilers
) -> None:
    tiny = tiny_gguf(options)
    with (
        pytest.raises(UnsupportedModelError, match=r"is 24; .* multiple of 16"),
        cpu_model(tiny.path, compiler_for(ISAS[0]), SIZES),
    ):
        pass


@pytest.mark.parametrize(
    ("attention", "kept"),
    [
        (RecurrentAttention(4, 2, 16, 16, 4), "a state"),
        (LatentAttention(4, None, 32, 16, 16, 16), "latent vectors"),
    ],
)
def test_layers_that_keep_something_else_are_refused(
    attention: Attention, kept: str, tiny_gguf: Make, compiler_for: Compilers
) -> None:
    with open_model(tiny_gguf(TinyOptions()).path) as file:
        spec, weights = read_model(file)
        layers = (spec.layers[0], replace(spec.layers[1], attention=attention))
        source = LoadableModel(file, replace(spec, layers=layers), weights)
        for load in (
            lambda: CpuModel(
                source, lambda ops: forward(ops, source.spec, source.weights), compiler_for(ISAS[0]), SIZES, 1
            ),
            lambda: ReferenceBackend().load(source, SIZES, lambda: None),
        ):
            with pytest.raises(UnsupportedModelError, match=f"Layer 1 keeps {kept} of a sequence") as caught:
                load()
            assert caught.value.hint


def test_no_logits_are_an_empty_array(model: CpuModel) -> None:
    batch = batch_of((0, 4))
    nothing = Batch(batch.tokens, batch.positions, batch.row_starts, batch.block_tables, np.zeros(0, np.int32))
    assert model.run(nothing).shape == (0, model.vocab_size)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_files_pages_are_dropped_after_packing(tiny_gguf: Make, compiler_for: Compilers) -> None:
    path = tiny_gguf(TinyOptions.wide("llama", "Q8_0", layers=2, ffn=1024)).path
    with cpu_model(path, compiler_for(ISAS[0]), SIZES):
        assert resident_bytes(path) < path.stat().st_size / 4


def resident_bytes(path: Path) -> int:
    """Bytes of the mappings of ``path`` that are in this process's memory."""
    gc.collect()
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
