"""Model files of any format: descriptions of the model and of its tokenizer, and tensors by our names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from twofold.core.tensors import ModelSource, StoredTensor
from twofold.formats.gguf import GGUFFile


class ModelFile(Protocol):
    """An open model file; a context manager. Arrays from ``data`` stay valid after it is closed.

    path       the file, or the first of its parts
    parts      the file, or all its parts, in order
    model      the description of the model (``models.read``)
    tokenizer  the description of its tokenizer (``text.tokenizers.metadata``)
    tensors    by the names of ``core.tensors``; a tensor that has none keeps the file's name
    """

    @property
    def path(self) -> Path: ...

    @property
    def parts(self) -> tuple[Path, ...]: ...

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

    def read_ahead(self) -> None:
        """Asks the system to read the file into its page cache, in order. Does nothing where that is not possible."""
        ...

    def release(self) -> None:
        """Drops the file's pages from this process, for example after its weights were repacked."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


OPENERS: Final[Mapping[str, Callable[[Path], ModelFile]]] = {".gguf": GGUFFile.open}
"""The function that opens a file, by the ending of its name."""


def open_model(path: Path) -> ModelFile:
    """The model file at ``path``. A file with an unknown ending is read as GGUF, so that the error describes it.

    Raises FormatError for a damaged file, UnsupportedModelError for one that holds what Twofold does not implement,
    ModelNotFoundError if the file is missing, ResourceError if it is unreadable.
    """
    return OPENERS.get(path.suffix, OPENERS[".gguf"])(path)
