"""Where Twofold keeps what it can make or fetch again: TWOFOLD_CACHE, else the user's cache folder."""

from __future__ import annotations

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
        """Makes the folders, readable by their owner only. ResourceError where that is impossible."""
        for folder in (self.root, self.models, self.kernels, self.tokenizers):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ResourceError(
                    f"The cache folder {folder} cannot be created: {error.strerror}.",
                    hint="Set TWOFOLD_CACHE to a folder that you may write to.",
                ) from error
        return self
