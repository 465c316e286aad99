"""From a model file to its description and bound weights. The reader depends on the kind of the file's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from twofold.core.model import ModelSpec
from twofold.core.tensors import SourceKind
from twofold.formats.base import ModelFile
from twofold.models.bind import ModelWeights, bind
from twofold.models.gguf import describe_gguf, read_gguf

READERS: Final[Mapping[SourceKind, Callable[[ModelFile, int | None], ModelSpec]]] = {"gguf": read_gguf}
DESCRIBERS: Final[Mapping[SourceKind, Callable[[ModelFile], ModelSpec]]] = {"gguf": describe_gguf}


def read_model(file: ModelFile, context_length: int | None = None) -> tuple[ModelSpec, ModelWeights]:
    """The model that a file holds, for engines.

    ``context_length`` is the longest sequence that will run, at most (and by default) the model's own context.

    Raises FormatError if a key or a tensor is missing or contradicts others, and UnsupportedModelError if the
    architecture, a key or a tensor needs a feature that Twofold does not implement.
    """
    spec = READERS[file.model.kind](file, context_length)
    return spec, bind(spec, file.tensors)


def describe_model(file: ModelFile) -> ModelSpec:
    """The sizes of a file's model, even of one that no engine runs. Raises FormatError or UnsupportedModelError unless
    the sizes account for every value of the file."""
    return DESCRIBERS[file.model.kind](file)
