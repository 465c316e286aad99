"""A model that is loaded, with its engine: what ``LLM`` and ``AsyncLLM`` have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from twofold.core.clock import Clock, MonotonicClock
from twofold.core.params import check_keywords
from twofold.engine.assemble import assemble
from twofold.engine.config import EngineConfig, EngineKeywords, EngineOptions
from twofold.engine.load import LoadedModel, load_model
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.text.tokenizers.tokenizer import Tokenizer


class OpenModel:
    """A loaded model and an engine over it. Whoever makes one calls ``_start``, once."""

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, clock: Clock | None = None) -> Self:
        """One over a model that is loaded already; ``close`` lets the model go."""
        opened = cls.__new__(cls)
        opened._start(loaded, clock or MonotonicClock())
        return opened

    def _start(self, loaded: LoadedModel, clock: Clock) -> None:
        self._loaded = loaded
        self._engine = assemble(loaded, clock)
        self._closed = False

    @property
    def loaded(self) -> LoadedModel:
        """The model's description, its configuration, and how long loading and compiling took."""
        return self._loaded

    @property
    def config(self) -> EngineConfig:
        """What it runs with, every automatic choice made."""
        return self._loaded.config

    def get_tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer


def open_model(
    owner: str,
    model: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | None,
    progress: sources.Progress,
    options: EngineKeywords,
) -> LoadedModel:
    """Finds a model and loads it, for a class ``owner`` with the keywords of ``LLM``."""
    check_keywords(owner, options, (*EngineKeywords.__annotations__, "model", "tokenizer", "progress"))
    wanted = EngineOptions(**options)
    folders = CacheFolders.of().create()
    return load_model(
        _resolved(model, folders, progress),
        wanted,
        tokenizer_path=None if tokenizer is None else _resolved(tokenizer, folders, progress),
        tokenizer_cache=folders.tokenizers,
        cache=folders.root,
        chats=True,
    )


def _resolved(name: str | os.PathLike[str], folders: CacheFolders, progress: sources.Progress) -> Path:
    return sources.resolve(os.fspath(name), cache=folders.models, progress=progress).path
