"""Flags from the environment: ``TWOFOLD_MAX_MODEL_LEN=2048`` is ``--max-model-len 2048``; the command line wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twofold.host.env import FLAG_PREFIX, read_environment

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection


def flags_from_environment(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A configuration source for cyclopts: fills the flags that the command line left out."""
    from cyclopts import Token  # noqa: PLC0415 - start-up time

    settings = read_environment().settings
    for argument in arguments:
        flag = argument.name.removeprefix("--")
        if argument.tokens or flag == argument.name or flag not in settings:
            continue
        variable = FLAG_PREFIX + flag.upper().replace("-", "_")
        for index, value in enumerate(argument.env_var_split(settings[flag])):
            argument.append(Token(keyword=variable, value=value, source="environment", index=index))
