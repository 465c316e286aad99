"""The CPU model over a GGUF file, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.model import CpuModel, CpuOptions
from twofold.formats.open import open_model
from twofold.models.decoder import forward
from twofold.models.read import read_model


@contextmanager
def cpu_model(path: Path, compiler: Compiler, options: CpuOptions) -> Iterator[CpuModel]:
    """A model ready to run; its threads end with the block. Every KV group gets what ``options`` say of the first."""
    with open_model(path) as file:
        spec, weights = read_model(file)
        groups = len(spec.kv_groups(options.max_positions))
        options = replace(options, blocks=options.blocks[:1] * groups, host_slots=options.host_slots[:1] * groups)
        model = CpuModel(file, spec, lambda ops: forward(ops, spec, weights), compiler, options)
        try:
            yield model
        finally:
            model.close()
