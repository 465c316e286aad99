"""Versions of Twofold and of the packages it uses."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PACKAGES: Final = ("numpy", "llvmlite", "tokenizers", "llguidance", "jinja2", "huggingface-hub", "starlette", "uvicorn")


def twofold_version() -> str:
    """The version of Twofold, if it is installed."""
    return _version("twofold") or "not installed"


def versions() -> dict[str, str]:
    """Versions of Python, Twofold and the installed packages among ``PACKAGES``."""
    found = {name: text for name in PACKAGES if (text := _version(name)) is not None}
    return {"twofold": twofold_version(), "python": platform.python_version(), **found}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
