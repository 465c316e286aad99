"""A model by whatever names it: a file, a folder, an alias of a model in the cache, or the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twofold.core.errors import TwofoldError
from twofold.core.model import ModelSpec
from twofold.formats.fetch.names import ALIASES
from twofold.models.config import read_config_file
from twofold.planner.shapes.known import find_shape


def resolve_shape(name: str) -> ModelSpec:
    """The shape of a GGUF file, a config.json, the folder of one, an alias's file in the cache, or a known model.

    A file's shape has the name of the file, or the alias. Raises ModelNotFoundError with the nearest names, FormatError
    for a damaged file.
    """
    path = Path(name).expanduser()
    file = model_file(name)
    if file is not None:
        return replace(read_shape(file), name=name if name in ALIASES else path.stem)
    if path.suffix == ".json" or (path / "config.json").is_file():
        return read_config_file(path)
    return find_shape(name)


def read_shape(path: Path) -> ModelSpec:
    """The sizes of a model file. Raises what opening and reading it raise."""
    # Reading files needs NumPy, which takes longer to load than all else here.
    from twofold.formats.open import open_model  # noqa: PLC0415
    from twofold.models.read import describe_model  # noqa: PLC0415

    with open_model(path) as file:
        return describe_model(file)


def model_file(name: str) -> Path | None:
    """The GGUF file that is named, or that an alias has in the cache; None where there is none."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return path
    if name not in ALIASES:
        return None
    from twofold.formats.fetch.sources import locate  # noqa: PLC0415 - start-up time
    from twofold.host.paths import CacheFolders  # noqa: PLC0415

    try:
        return locate(name, cache=CacheFolders.of().models).path
    except (TwofoldError, OSError):
        return None
