"""``twofold completion``: a script that completes commands and flags in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from twofold.cli.console import answer


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish.")], /) -> int:
    """Print a completion script for a shell.

    bash: twofold completion bash > ~/.local/share/bash-completion/completions/twofold

    zsh: twofold completion zsh > a file named _twofold in a folder of $fpath

    fish: twofold completion fish > ~/.config/fish/completions/twofold.fish
    """
    from twofold.cli.main import app  # noqa: PLC0415 - import cycle

    answer(app().generate_completion(shell=shell).rstrip("\n") + "\n")
    return 0
