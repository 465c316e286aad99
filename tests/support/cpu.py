"""The CPU model over a GGUF file, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twofold.formats.gguf import GGUFFile
from twofold.kernels.jit import Compiler
from twofold.models.decoder import forward
from twofold.models.read import read_model
from twofold.ops.cpu.model import CpuModel, CpuOptions


@contextmanager
def cpu_model(path: Path, compiler: Compiler, options: CpuOptions) -> Iterator[CpuModel]:
    """A model ready to run; its threads end with the block."""
    with GGUFFile.open(path) as file:
        spec, weights = read_model(file.metadata, file.tensors, file.data)
        model = CpuModel(file, spec, lambda ops: forward(ops, spec, weights), compiler, options)
        try:
            yield model
        finally:
            model.close()
