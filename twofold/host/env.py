"""The environment. No other module of the package reads ``os.environ``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FLAG_PREFIX: Final = "TWOFOLD_"
SECRETS: Final = ("TWOFOLD_API_KEY",)
"""Variables that no process needs but the one that the user started."""
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class Environment:
    """Settings from the environment.

    ``settings`` holds the value of each ``TWOFOLD_<FLAG>`` by its flag: ``TWOFOLD_MAX_MODEL_LEN`` is ``max-model-len``.
    """

    home: Path
    cache: Path | None
    xdg_cache_home: Path | None
    xdg_data_home: Path | None
    xdg_state_home: Path | None
    no_color: bool
    dumb_terminal: bool
    otlp_endpoint: str | None
    otlp_service: str
    notify_socket: str | None
    settings: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Environment(home={str(self.home)!r}, settings={sorted(self.settings)!r})"  # settings may hold secrets


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process, or ``variables``."""
    source = os.environ if variables is None else variables
    return Environment(
        home=_path(source, "HOME") or Path.home(),
        cache=_path(source, "TWOFOLD_CACHE"),
        xdg_cache_home=_absolute(source, "XDG_CACHE_HOME"),
        xdg_data_home=_absolute(source, "XDG_DATA_HOME"),
        xdg_state_home=_absolute(source, "XDG_STATE_HOME"),
        no_color=bool(source.get("NO_COLOR")),
        dumb_terminal=source.get("TERM", "").lower() in ("dumb", "unknown"),
        otlp_endpoint=source.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None,
        otlp_service=source.get("OTEL_SERVICE_NAME") or "twofold",
        notify_socket=source.get("NOTIFY_SOCKET") or None,
        settings={_flag_name(key): value for key, value in source.items() if key.startswith(FLAG_PREFIX)},
    )


def forget_secrets() -> None:
    """Removes secrets from the environment, of which every child process gets a copy; to be called when they are
    read."""
    for name in SECRETS:
        os.environ.pop(name, None)


def quiet_child() -> dict[str, str]:
    """The environment for a child process that forks: with it, libraries start no threads."""
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), "TOKENIZERS_PARALLELISM": "false"}


def _flag_name(key: str) -> str:
    return key.removeprefix(FLAG_PREFIX).lower().replace("_", "-")


def _path(source: Mapping[str, str], name: str) -> Path | None:
    value = source.get(name)
    return Path(value).expanduser() if value else None


def _absolute(source: Mapping[str, str], name: str) -> Path | None:
    """An absolute path; the XDG base directory specification ignores relative ones."""
    path = _path(source, name)
    return path if path is not None and path.is_absolute() else None
