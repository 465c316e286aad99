"""What a model is known by: its files, all parts of them.

A model of one file has the identities that it had before models had parts, so that stores and caches stay valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from twofold.core.errors import ModelNotFoundError
from twofold.formats.gguf import part_paths

END_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 1 << 16


def model_parts(path: Path) -> tuple[Path, ...]:
    """The files of the model at ``path``, which may be any part, by their names and as far as they exist."""
    return tuple(part for part in part_paths(path) if part.exists()) or (path,)


def changed(parts: Sequence[Path]) -> tuple[int, ...]:
    """When each part was last changed, in ns since 1970. Raises OSError if one is missing."""
    return tuple(part.stat().st_mtime_ns for part in parts)


def model_key(parts: Sequence[Path]) -> str:
    """A readable key: the name, the size, and a digest of each part's first 64 KiB, which hold the model's sizes."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
    size = sum(part.stat().st_size for part in parts)
    return f"{parts[0].stem}-{size}-{digest.hexdigest()[:12]}"


def ends_digest(parts: Sequence[Path]) -> str:
    """A digest of each part's size, its first 1 MiB, which has the metadata, and its last one, which has weights:
    reading all of it would take seconds. Raises ModelNotFoundError if one cannot be read."""
    digest = hashlib.sha256()
    for part in parts:
        try:
            size = part.stat().st_size
            with part.open("rb") as file:
                for place in (0, max(0, size - END_BYTES)):
                    file.seek(place)
                    digest.update(file.read(END_BYTES))
        except OSError as error:
            raise _unreadable(part, error) from error
        digest.update(str(size).encode())
    return digest.hexdigest()


def file_digest(parts: Sequence[Path]) -> str:
    """A digest of all bytes, at about 3 GB/s. Raises ModelNotFoundError if a part cannot be read."""
    digests = []
    for part in parts:
        try:
            digests.append(blake3(max_threads=blake3.AUTO).update_mmap(part).hexdigest())
        except OSError as error:
            raise _unreadable(part, error) from error
    return digests[0] if len(digests) == 1 else blake3("".join(digests).encode()).hexdigest()


def _unreadable(part: Path, error: OSError) -> ModelNotFoundError:
    return ModelNotFoundError(f"{part} cannot be read: {error.strerror}.")
