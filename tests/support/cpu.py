"""The CPU model over a GGUF file, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from twofold.backends.base import LoadableModel, RunnerSizes
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.model import CpuModel
from twofold.core.kv_layout import KVType
from twofold.formats.base import open_model
from twofold.models.decoder import forward
from twofold.models.read import read_model


def cpu_sizes(
    blocks: int,
    context: int,
    rows: int,
    logit_rows: int,
    *,
    block_size: int = 16,
    kv_type: KVType = "bf16",
    slots: int = 0,
) -> RunnerSizes:
    """Sizes of a model with one KV group."""
    return RunnerSizes(
        context=context,
        sequences=rows,
        rows=rows,
        logit_rows=logit_rows,
        block_size=block_size,
        blocks=(blocks,),
        host_slots=(slots,),
        kv_type=kv_type,
    )


@contextmanager
def cpu_model(path: Path, compiler: Compiler, sizes: RunnerSizes, workers: int = 2) -> Iterator[CpuModel]:
    """A model ready to run; its threads end with the block. Every KV group has the blocks and slots of the first."""
    with open_model(path) as file:
        spec, weights = read_model(file)
        groups = len(spec.kv_groups(sizes.context))
        sizes = replace(sizes, blocks=sizes.blocks[:1] * groups, host_slots=sizes.host_slots[:1] * groups)
        source = LoadableModel(file, spec, weights)
        model = CpuModel(source, lambda ops: forward(ops, spec, weights), compiler, sizes, workers)
        try:
            yield model
        finally:
            model.close()
