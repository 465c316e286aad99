"""File names of split models: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)


def part_number(name: str) -> int | None:
    """Which part of a split model a file is by its name, from 1; None for a whole model."""
    match = _NAME.fullmatch(name)
    return int(match["number"]) if match else None


def part_names(name: str) -> list[str]:
    """The names of all parts of a split model, given any; of a whole model its own."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def part_paths(path: Path) -> list[Path]:
    """As ``part_names``, of files in one folder."""
    return [path.with_name(name) for name in part_names(path.name)]
