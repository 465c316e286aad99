"""A model file, whatever its format: what describes the model and its tokenizer, and its tensors by our names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from twofold.core.tensors import ModelSource, StoredTensor


class ModelFile(Protocol):
    """An open model file; a context manager. Arrays from ``data`` stay valid when it is closed.

    path       the file, or the first of its parts
    model      describes the model (``models.read``)
    tokenizer  describes its tokenizer (``text.metadata``)
    tensors    by the names of ``core.tensors``; a tensor without such a name has the file's
    """

    @property
    def path(self) -> Path: ...

    @property
    def model(self) -> ModelSource: ...

    @property
    def tokenizer(self) -> ModelSource: ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    @property
    def nbytes(self) -> int:
        """Size of the file, or of all its parts."""
        ...

    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, uint8 [nbytes], read-only and without a copy. KeyError for an unknown name."""
        ...

    def release(self) -> None:
        """Drops the file's pages from this process: weights that were repacked."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
