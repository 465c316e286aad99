"""From a model file to its description and bound weights, by the reader of its kind of keys."""

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

    Raises FormatError where something needed is missing or contradictory, and UnsupportedModelError where the
    architecture, a field or a tensor asks for something that Twofold does not implement.
    """
    spec = READERS[file.model.kind](file, context_length)
    return spec, bind(spec, file.tensors)


def describe_model(file: ModelFile) -> ModelSpec:
    """The sizes of a file's model, of models that no engine runs too. Raises FormatError for an incomplete file."""
    return DESCRIBERS[file.model.kind](file)
