"""What readers know of a model file, whatever its format: values that describe something, and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from twofold.core.quant import QuantFormat

SourceKind = Literal["gguf", "config"]
"""The keys of a source: those of GGUF metadata, or those of Hugging Face configurations."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The description of a model or of its tokenizer: values by key, and the kind of the keys."""

    kind: SourceKind
    values: Mapping[str, object]


class StoredTensor(Protocol):
    """A tensor of a file: ``rows`` × ``columns`` values, a vector in one row. ``name`` is the file's own for it."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def format(self) -> QuantFormat: ...
