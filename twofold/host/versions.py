"""Which versions run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PACKAGES: Final = ("numpy", "llvmlite", "tokenizers", "llguidance", "jinja2", "huggingface-hub", "starlette", "uvicorn")


def twofold_version() -> str:
    """Twofold's own; a checkout that is not installed has none."""
    return _version("twofold") or "not installed"


def versions() -> dict[str, str]:
    """Python, Twofold and what it computes with; a package that is missing is left out."""
    found = {name: text for name in PACKAGES if (text := _version(name)) is not None}
    return {"twofold": twofold_version(), "python": platform.python_version(), **found}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
