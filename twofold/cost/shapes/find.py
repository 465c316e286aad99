"""A model by whatever names it: a file, a folder, or the table."""

from __future__ import annotations

from pathlib import Path

from twofold.cost.shapes.config import read_config_file
from twofold.cost.shapes.known import find_shape
from twofold.cost.shapes.model import ModelShape


def resolve_shape(name: str) -> ModelShape:
    """The shape of a GGUF file, a config.json, the folder of one, or a model of the table.

    Raises ModelNotFoundError with the nearest names, FormatError for a damaged file.
    """
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        # Reading GGUF files needs NumPy, which takes longer to load than all else here.
        from twofold.cost.shapes.gguf import read_gguf  # noqa: PLC0415

        return read_gguf(path)
    if path.suffix == ".json" or (path / "config.json").is_file():
        return read_config_file(path)
    return find_shape(name)
