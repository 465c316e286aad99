"""Messages from standard input line by line: for scripts, and for terminals without line editing."""

from __future__ import annotations

import sys
from typing import Final

from twofold.cli.console import is_terminal

QUOTES: Final = '"""'


def is_open(text: str) -> bool:
    """Whether a message goes on in the next line: it ends in a backslash, or began with three quotes."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES)
    return text.endswith("\\")


def message(text: str) -> str:
    """The message that was typed: without the quotes around it, or the backslashes at the ends of its lines."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped[len(QUOTES) :].removesuffix(QUOTES).strip("\n")
    return text.replace("\\\n", "\n").strip()


class LineReader:
    """``Reader`` of standard input. ``prompt`` is shown before each message where a person types."""

    def __init__(self, prompt: str, more: str) -> None:
        self._prompt, self._more = (prompt, more) if is_terminal(sys.stdin) else ("", "")

    def read(self) -> str:
        """``Reader.read``. What stands before the end of input is a message, even without its last line end."""
        lines = [input(self._prompt)]
        while is_open("\n".join(lines)):
            try:
                lines.append(input(self._more))
            except EOFError:
                break
        return message("\n".join(lines))
