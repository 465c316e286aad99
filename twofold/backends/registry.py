"""Backends by name. A backend's code is imported when it is opened: kernels are only loaded where they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

from twofold.backends.base import Backend
from twofold.core.errors import ParameterError
from twofold.core.params import check_choice

BACKENDS: Final = {
    "cpu": "twofold.backends.cpu.backend:CpuBackend",
    "reference": "twofold.backends.reference.backend:ReferenceBackend",
}
"""Module and class of each backend."""


def open_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of that name. Options are the fields of its class; those that are None keep their defaults.

    Raises ParameterError for an unknown backend and for an option that it does not have.
    """
    check_choice("backend", name, tuple(BACKENDS))
    module, class_name = BACKENDS[name].split(":")
    kind = getattr(import_module(module), class_name)
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {field.name for field in fields(kind)}:
        raise ParameterError(f"The {name} backend has no option {option}.", param=option)
    backend: Backend = kind(**given)
    return backend
