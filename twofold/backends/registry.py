"""Backends by name. A backend's code is imported when it is opened: kernels are only loaded where they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

from twofold.backends.base import Backend
from twofold.core.errors import ParameterError, closest_match

BACKENDS: Final[Mapping[str, str]] = {
    "cpu": "twofold.backends.cpu.backend:CpuBackend",
    "reference": "twofold.backends.reference.backend:ReferenceBackend",
}
"""Module and class of each backend."""


def check_backend(name: object) -> None:
    """Raises ParameterError for an unknown backend."""
    if name not in BACKENDS:
        close = closest_match(str(name), BACKENDS)
        raise ParameterError(
            f"backend must be {' or '.join(BACKENDS)}, not {name!r:.40}.",
            param="backend",
            hint=f"Did you mean {close!r}?" if close else None,
        )


def open_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of that name. Options are the fields of its class; those that are None keep their defaults.

    Raises ParameterError for an unknown backend and for an option that it does not have.
    """
    check_backend(name)
    module, class_name = BACKENDS[name].split(":")
    kind = getattr(import_module(module), class_name)
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {field.name for field in fields(kind)}:
        raise ParameterError(f"The {name} backend has no option {option}.", param=option)
    backend: Backend = kind(**given)
    return backend
