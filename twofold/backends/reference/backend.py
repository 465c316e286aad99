"""The reference backend: the decoder on float32 NumPy arrays. Slow; what other backends are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from twofold.backends.base import RunnerSizes
from twofold.backends.dequantize import dequantize
from twofold.backends.host import HostRunner
from twofold.backends.reference.ops import FloatType, PagedCache, ReferenceModel
from twofold.backends.reference.rows import NumpyRows
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ResourceError
from twofold.core.model import ModelSpec
from twofold.formats.base import ModelFile
from twofold.host.cpu import read_cpu
from twofold.host.memory import read_memory
from twofold.models.bind import ModelWeights
from twofold.models.decoder import forward


@dataclass(frozen=True, slots=True)
class ReferenceBackend:
    """``Backend`` on NumPy. It has no options; weights take four bytes a value, whatever their format in the file."""

    name: ClassVar[str] = "reference"
    variant: ClassVar[str] = "reference"

    @property
    def device(self) -> str:
        """``Backend.device``: the processor."""
        return read_cpu().name

    def warnings(self) -> tuple[str, ...]:
        """``Backend.warnings``: it has no options."""
        return ()

    def limits(self, working_set: int) -> None:
        """``Backend.limits``: it is far from any."""

    def free_memory(self) -> int:
        """``Backend.free_memory``."""
        return read_memory().available

    def load(self, file: ModelFile, spec: ModelSpec, weights: ModelWeights, sizes: RunnerSizes) -> HostRunner:
        """``Backend.load``."""
        needed = 4 * sum(tensor.rows * tensor.columns for tensor in file.tensors.values())
        if needed > self.free_memory():
            raise ResourceError(
                f"The model's weights take {needed:,} bytes as float32.",
                hint="Use a smaller model, or the cpu backend, which computes with quantised weights.",
            )
        values = {name: dequantize(file.data(name), info.format, info.columns) for name, info in file.tensors.items()}
        dtype: FloatType = np.float32 if sizes.kv_type == "f32" else np.float16
        groups = spec.kv_groups(sizes.context)
        cache = PagedCache(groups, sizes.blocks, sizes.block_size, spec.attention.kv_size, dtype, sizes.host_slots)
        decode = partial(forward, spec=spec, weights=weights)
        model = ReferenceModel(decode, values, cache, spec.vocab_size, spec.hidden_size, sizes.rows)
        return HostRunner(model, Sampler(NumpyRows()), sizes)
