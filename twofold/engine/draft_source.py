"""The file of a draft model, and whether it can propose tokens for its target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from twofold.backends.base import LoadableModel
from twofold.core.errors import ModelError, ParameterError
from twofold.engine.config import EngineOptions
from twofold.formats.base import ModelFile, open_model
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.models.read import read_model
from twofold.text.tokenizers.metadata import read_vocabulary

OTHER_DRAFT: Final = "Name a smaller model of the same family as the draft model, or do without one (the method auto)."


def find_draft(options: EngineOptions, progress: sources.Progress = sources.SILENT) -> Path | None:
    """The file of the draft model, fetched if it is missing; None without one. Raises ModelError."""
    name = options.speculation.model
    if name is None:
        return None
    return sources.resolve(os.fspath(name), cache=CacheFolders.of().create().models, progress=progress).path


@contextmanager
def open_draft(path: Path, target: Path, file: ModelFile, context: int | None) -> Iterator[LoadableModel]:
    """The draft model in the file ``path`` for the model in the file ``target``, which is open as ``file``.

    Raises ParameterError for a draft model that is the target itself, is not smaller, or has another vocabulary, and
    for one that no engine can run.
    """
    if path.samefile(target):
        raise _refusal(f"The draft model is the target itself, {target}, which it cannot speed up.")
    with open_model(path) as draft:
        own, others = _parameters(draft), _parameters(file)
        if own >= others:
            raise _refusal(f"The draft model {path} has {own:,} parameters, and its target only {others:,}.")
        _check_vocabulary(path, draft, file)
        try:
            spec, weights = read_model(draft, context)
        except ModelError as error:
            raise _refusal(f"The draft model {path} cannot run: {error}") from error
        yield LoadableModel(draft, spec, weights)


def _parameters(file: ModelFile) -> int:
    return sum(info.rows * info.columns for info in file.tensors.values())


def _check_vocabulary(path: Path, draft: ModelFile, target: ModelFile) -> None:
    """Ids that both have must mean the same; models of a family differ in the padding after them."""
    own, others = read_vocabulary(draft.tokenizer), read_vocabulary(target.tokenizer)
    if own.texts[: len(others.texts)] == others.texts[: len(own.texts)] and own.model == others.model:
        return
    pairs = enumerate(zip(own.texts, others.texts, strict=False))
    found = next(((i, a, b) for i, (a, b) in pairs if a != b), None)
    what = (
        f"its token {found[0]} is {found[1]!r}, the target's is {found[2]!r}" if found else "it spells texts otherwise"
    )
    raise _refusal(f"The draft model {path} has another vocabulary than its target: {what}.")


def _refusal(message: str) -> ParameterError:
    return ParameterError(message, param="speculative_config", hint=OTHER_DRAFT)
