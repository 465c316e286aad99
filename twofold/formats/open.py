"""Opens model files of every format that Twofold reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from twofold.formats.base import ModelFile
from twofold.formats.gguf import GGUFFile

OPENERS: Final[Mapping[str, Callable[[Path], ModelFile]]] = {".gguf": GGUFFile.open}
"""What opens a file, by the ending of its name."""


def open_model(path: Path) -> ModelFile:
    """The model file at ``path``. A file of an unknown ending is read as GGUF, so that its error names it.

    Raises FormatError for a damaged file, UnsupportedModelError for one that holds what Twofold does not implement,
    ModelNotFoundError if the file is missing, ResourceError if it is unreadable.
    """
    return OPENERS.get(path.suffix, OPENERS[".gguf"])(path)
