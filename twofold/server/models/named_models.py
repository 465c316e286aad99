"""The models that a server offers, and their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from twofold.core.errors import ModelNotFoundError, ParameterError, closest_match, quoted
from twofold.formats.fetch.names import PathSource, parse_name

_RENAMED: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w./-]*)=(?P<source>[^=].*)", re.ASCII)
MAX_NAME_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model and its names in requests; replies use the first one."""

    names: tuple[str, ...]
    source: str


def read_named_models(models: Sequence[str], served_names: Sequence[str] = ()) -> tuple[NamedModel, ...]:
    """The models of a command line: each is a NAME for ``formats.fetch.names``, or ALIAS=NAME.

    A file is named by its stem. ``served_names`` replace the names of a single model. Raises ParameterError if two
    models have the same name, and the errors of ``parse_name``.
    """
    offers: dict[str, tuple[str, ...]] = {}
    for spec in models:
        name, source = _split(spec)
        offers[source] = (*(known for known in offers.get(source, ()) if known != name), name)
    if not offers:
        raise ParameterError("There is no model to serve.", param="model", hint="Name one.")
    if served_names:
        if len(offers) > 1:
            hint = "Write ALIAS=NAME for each model instead."
            raise ParameterError(
                "served_model_name names one model, not several.", param="served_model_name", hint=hint
            )
        offers = {source: tuple(dict.fromkeys(served_names)) for source in offers}
    _check_names(offers.values())
    return tuple(NamedModel(names, source) for source, names in offers.items())


def unknown_model(name: str, known: Iterable[str]) -> ModelNotFoundError:
    """The error for a name that no model has."""
    names = list(known)
    close = closest_match(name, names)
    hint = f"Did you mean {close!r}?" if close else f"Served here: {', '.join(names)[:MAX_NAME_CHARS]}."
    return ModelNotFoundError(f"No model is served as {quoted(name)}.", hint=hint)


def _split(spec: str) -> tuple[str, str]:
    """The name to serve a model under, and its source."""
    renamed = _RENAMED.fullmatch(spec)
    if renamed is not None:
        parse_name(renamed["source"])
        return renamed["name"], renamed["source"]
    source = parse_name(spec)
    return (source.path.stem if isinstance(source, PathSource) else spec), spec


def _check_names(offered: Iterable[tuple[str, ...]]) -> None:
    seen: set[str] = set()
    for name in (name for names in offered for name in names):
        if not name or len(name) > MAX_NAME_CHARS:
            raise ParameterError(f"{quoted(name)} is not a valid model name.", param="model")
        if name in seen:
            hint = "Write ALIAS=NAME to tell them apart."
            raise ParameterError(f"Two models have the name {name!r}.", param="model", hint=hint)
        seen.add(name)
