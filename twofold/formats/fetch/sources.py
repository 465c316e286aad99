"""From a model's name to a file on this machine. A model is fetched once, into the cache folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold.core.errors import FormatError, ModelNotFoundError, ParameterError
from twofold.formats.fetch.names import (
    ALIASES,
    DEFAULT_MODEL,
    HUB_ALIASES,
    Alias,
    HubSource,
    PathSource,
    PypiSource,
    parse_name,
)
from twofold.formats.fetch.store import SILENT, InstalledModel, ModelStore, Progress, slug_of

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "HUB_ALIASES",
    "SILENT",
    "InstalledModel",
    "Progress",
    "ResolvedModel",
    "installed",
    "licence_of",
    "locate",
    "remove",
    "resolve",
]

_LISTED_FILES: Final = 5


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file on this machine. ``licence`` is empty if unknown."""

    path: Path
    name: str
    source: str
    licence: str


def resolve(name: str, *, cache: Path, progress: Progress = SILENT) -> ResolvedModel:
    """The file of a model, which is fetched into the folder ``cache`` if it is missing there.

    ``name`` is a path, an alias, ``hf.co/user/model[:QUANT]`` or ``pypi:package[==version]``. Raises
    ModelNotFoundError, ParameterError (a malformed name), NetworkError, ResourceError (disk), FormatError (a damaged
    download).
    """
    source = parse_name(name)
    if isinstance(source, PathSource):
        return ResolvedModel(_existing(source.path), source.path.stem, "path", "")
    store = ModelStore(cache)
    slug = _slug(name, source)
    model = _current(store, slug, source)
    if model is None:
        with store.locked(slug):
            # Another process may have fetched it while this one waited.
            model = _current(store, slug, source) or _fetch(name, slug, source, store, progress)
    return _resolved(model)


def locate(name: str, *, cache: Path) -> ResolvedModel:
    """As ``resolve``, but fetches nothing: raises ModelNotFoundError if the model is not in the cache."""
    source = parse_name(name)
    if isinstance(source, PathSource):
        return ResolvedModel(_existing(source.path), source.path.stem, "path", "")
    model = _current(ModelStore(cache), _slug(name, source), source)
    if model is None:
        licence = licence_of(name)
        terms = f" (licence: {licence})" if licence else ""
        hint = f"Fetch it{terms}: twofold pull {name}"
        raise ModelNotFoundError(f"The model {name} is not in the cache.", hint=hint)
    return _resolved(model)


def licence_of(name: str) -> str:
    """The licence of an alias; empty for any other name."""
    alias = ALIASES.get(name) or HUB_ALIASES.get(name)
    return "" if alias is None else alias.licence


def _resolved(model: InstalledModel) -> ResolvedModel:
    return ResolvedModel(model.path, model.name, model.source, licence_of(model.name) or model.licence)


def installed(cache: Path) -> list[InstalledModel]:
    """The models in the cache folder, by name."""
    return ModelStore(cache).installed()


def remove(name: str, *, cache: Path) -> InstalledModel:
    """Deletes a model from the cache folder. Raises ModelNotFoundError if it is missing, ParameterError for a path."""
    try:
        source = parse_name(name)
    except ModelNotFoundError:
        return ModelStore(cache).remove(name, None)
    if isinstance(source, PathSource):
        hint = "Only fetched models are removed; delete your own files yourself."
        raise ParameterError(f"{name} is a file, not a model of the cache.", param="model", hint=hint)
    return ModelStore(cache).remove(name, _slug(name, source))


def _slug(name: str, source: Alias | HubSource | PypiSource) -> str:
    return slug_of(source.name if isinstance(source, Alias) else name)


def _current(store: ModelStore, slug: str, source: Alias | HubSource | PypiSource) -> InstalledModel | None:
    """The model in the store, unless the alias has another checksum now."""
    model = store.find(slug)
    if model is None or not isinstance(source, Alias) or model.sha256 == source.sha256:
        return model
    return None


def _fetch(
    name: str, slug: str, source: Alias | HubSource | PypiSource, store: ModelStore, progress: Progress
) -> InstalledModel:
    from twofold.formats.fetch.hub import fetch_hub  # noqa: PLC0415 - start-up time
    from twofold.formats.fetch.pypi import fetch_pypi  # noqa: PLC0415

    match source:
        case Alias():
            return fetch_pypi(source.name, slug, source.source, source, store, progress)
        case PypiSource():
            return fetch_pypi(name, slug, source, None, store, progress)
        case HubSource():
            return fetch_hub(name, slug, source, store, progress)


def _existing(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        names = ", ".join(file.name for file in found[:_LISTED_FILES])
        hint = f"Name a file in it: {names}." if found else "Name a .gguf file."
        raise FormatError(f"{path} is a folder.", hint=hint)
    if not path.exists():
        raise ModelNotFoundError(f"There is no file {path}.", hint="Check the path; `twofold ls` lists what is here.")
    return path
