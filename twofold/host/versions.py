"""Versions of Twofold and of the packages it uses."""

from __future__ import annotations

import platform
from typing import Final

PACKAGES: Final = ("numpy", "llvmlite", "tokenizers", "llguidance", "jinja2", "huggingface-hub", "starlette", "uvicorn")


NUMERICS: Final = 3
"""Version of the arithmetic (``docs/kernels.md``). Equal versions give equal outputs, to the bit, with equal options.

2: attention in bfloat16 by default; ``kv_cache_dtype="f16"`` gave the outputs of 1.
3: constant offsets of weight formats are subtracted inside the integer dot product.
"""


def twofold_version() -> str:
    """The version of Twofold, if it is installed."""
    return _version("twofold") or "not installed"


def versions() -> dict[str, str]:
    """Versions of Twofold, its numerics, Python, and the installed packages among ``PACKAGES``."""
    found = {name: text for name in PACKAGES if (text := _version(name)) is not None}
    return {"twofold": twofold_version(), "numerics": str(NUMERICS), "python": platform.python_version(), **found}


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - imports 24 modules

    try:
        return version(name)
    except PackageNotFoundError:
        return None
