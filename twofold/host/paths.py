"""Folders of Twofold: the cache for files that can be made or downloaded again, data and state folders for others."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from twofold.core.errors import ResourceError
from twofold.host.env import Environment, read_environment


@dataclass(frozen=True, slots=True)
class CacheFolders:
    """The cache folder and its parts. Nothing exists until ``create`` is called."""

    root: Path

    @classmethod
    def of(cls, environment: Environment | None = None) -> Self:
        """TWOFOLD_CACHE, else XDG_CACHE_HOME/twofold, else ~/.cache/twofold."""
        env = environment or read_environment()
        if env.cache is not None:
            return cls(env.cache.absolute())
        return cls((env.xdg_cache_home or env.home / ".cache") / "twofold")

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def kernels(self) -> Path:
        return self.root / "kernels"

    @property
    def tokenizers(self) -> Path:
        return self.root / "tokenizers"

    def create(self) -> Self:
        """Makes the folders, readable by their owner only. Raises ResourceError if that fails."""
        for folder in (self.root, self.models, self.kernels, self.tokenizers):
            private_folder(folder, "cache folder", "Set TWOFOLD_CACHE to a writable folder.")
        return self


def data_folder(environment: Environment | None = None) -> Path:
    """XDG_DATA_HOME/twofold, else ~/.local/share/twofold: files and batches of clients, stored responses, accounts."""
    env = environment or read_environment()
    return (env.xdg_data_home or env.home / ".local" / "share") / "twofold"


def state_folder(environment: Environment | None = None) -> Path:
    """XDG_STATE_HOME/twofold, else ~/.local/state/twofold: data that may be lost, such as histories."""
    env = environment or read_environment()
    return (env.xdg_state_home or env.home / ".local" / "state") / "twofold"


def private_folder(path: Path, kind: str = "folder", hint: str = "Choose a writable folder.") -> Path:
    """Creates the folder if needed, readable by its owner only. Raises ResourceError if that fails."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"The {kind} {path} cannot be created: {error.strerror}.", hint=hint) from error
    return path


def open_own(path: Path, flags: int) -> int:
    """Opens a file of ours, which is made for its owner only, and returns its descriptor. A symbolic link in its place
    is an OSError (ELOOP): whoever can put one into the folder would choose which file is written."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Writes a file, and the folders above it, readable by its owner only. Readers see the old content or the new one.

    ``sync`` waits until the content is on the disk. If an OSError is raised, no draft is left.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(descriptor)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
