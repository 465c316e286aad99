"""Tiny models as the model reader sees them, without a file: metadata, shapes and bytes that tests may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_writer import RawTensor
from tests.support.tiny import TinyOptions, tiny_metadata, tiny_tensors
from twofold.core.model import ModelSpec
from twofold.core.tensors import ModelSource, StoredTensor
from twofold.core.values import BY_NAME, QuantFormat
from twofold.formats.gguf import our_name
from twofold.models.bind import ModelWeights
from twofold.models.read import read_model


@dataclass(frozen=True, slots=True)
class Shape:
    rows: int
    columns: int
    format: QuantFormat = field(default_factory=lambda: BY_NAME["F32"])
    name: str = ""

    @property
    def nbytes(self) -> int:
        return self.rows * self.format.row_bytes(self.columns)


class DescribedFile:
    """``ModelFile`` over a description."""

    path = Path("described.gguf")
    parts = (path,)
    nbytes = 0

    def __init__(self, described: Described) -> None:
        self.model = self.tokenizer = ModelSource("gguf", described.metadata)
        shapes = {name: replace(shape, name=name) for name, shape in described.tensors.items()}
        self.tensors: Mapping[str, StoredTensor] = {our_name(name): shape for name, shape in shapes.items()}
        self._data = described.data

    def data(self, name: str) -> NDArray[np.uint8]:
        return self._data[self.tensors[name].name]

    def read_ahead(self) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass(slots=True)
class Described:
    """What a file says of itself. ``read`` reads the model that it now describes."""

    architecture: str
    metadata: dict[str, object]
    tensors: dict[str, Shape]
    data: dict[str, NDArray[np.uint8]]

    def read(self, context_length: int | None = None) -> tuple[ModelSpec, ModelWeights]:
        return read_model(DescribedFile(self), context_length)

    def spec(self, context_length: int | None = None) -> ModelSpec:
        return self.read(context_length)[0]

    def set(self, key: str, value: object) -> Described:
        """Sets the architecture's own ``key``; None removes it."""
        full = f"{self.architecture}.{key}"
        self.metadata.pop(full, None)
        if value is not None:
            self.metadata[full] = value
        return self


def describe(options: TinyOptions) -> Described:
    """The tiny model with these options, as its file would describe it."""
    raw = tiny_tensors(options)
    shapes = {name: _shape(tensor) for name, tensor in raw.items()}
    data = {name: tensor.data.ravel() for name, tensor in raw.items()}
    return Described(options.architecture, dict(tiny_metadata(options)), shapes, data)


def _shape(tensor: RawTensor) -> Shape:
    rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
    return Shape(rows, tensor.shape[-1], tensor.format)
