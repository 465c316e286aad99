"""Prompts from words on the command line and from standard input."""

from __future__ import annotations

import io
import select
import stat
import sys
from collections.abc import Sequence
from os import fstat
from typing import Final

from twofold.cli.console import is_terminal, note
from twofold.core.errors import UsageError

STANDARD_INPUT: Final = "\0-"
"""Stands for a "-" among the words of a prompt."""
WAIT_S: Final = 2.0
"""A silent pipe is mentioned after this many seconds: a program may have left it open by accident."""
_HINT: Final = 'Give one: twofold run "Why is the sky blue?", or: twofold chat'


def read_prompt(words: Sequence[str]) -> str:
    """The words joined by spaces; a "-" among them is the text on standard input.

    Without a "-", piped text follows the words after an empty line. Raises UsageError if there is no text.
    """
    parts = list(words)
    if STANDARD_INPUT in parts:
        piped = _read()
        if piped is None:
            raise UsageError('"-" reads the prompt from standard input, which is a terminal.', hint=_HINT)
        at = parts.index(STANDARD_INPUT)
        before, after = " ".join(parts[:at]), " ".join(part for part in parts[at + 1 :] if part != STANDARD_INPUT)
    else:
        piped = _read() if not parts or _is_piped() else None
        before, after = " ".join(parts), ""
    if not parts and piped is None:
        raise UsageError("No prompt was given.", hint=_HINT)
    given = [part for part in (before, piped or "", after) if part.strip()]
    if not given:
        where = "on standard input " if piped is not None and not before else ""
        raise UsageError(f"The prompt {where}is empty.", hint=_HINT)
    return given[0] if len(given) == 1 else "\n\n".join(part.strip("\n") for part in given)


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file, so it was redirected on purpose."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = fstat(sys.stdin.fileno()).st_mode
    except (OSError, io.UnsupportedOperation):
        return isinstance(sys.stdin, io.StringIO)
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read() -> str | None:
    """All of standard input; None if it is closed or a terminal. Raises UsageError for text not in UTF-8."""
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        return None
    _mention_silence()
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(
            "Standard input is not UTF-8 text.", hint="Convert it first, for example with iconv."
        ) from error


def _mention_silence() -> None:
    """Prints a note if there is no input for a while."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], WAIT_S)
    except (OSError, ValueError, io.UnsupportedOperation):
        return  # not a file that can be waited for
    if not ready:
        note("Reading the prompt from standard input, until it ends …")
