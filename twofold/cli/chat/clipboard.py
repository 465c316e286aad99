"""The clipboard of a terminal, also through ssh: the escape sequence OSC 52, which many terminals obey."""

from __future__ import annotations

import base64
import sys
from typing import Final

from twofold.cli.console import is_terminal
from twofold.core.errors import UsageError

MOST_BYTES: Final = 74_994
"""What terminals take at most, as xterm's documentation of control sequences has it."""


def copy(text: str) -> None:
    """Asks the terminal to put ``text`` on the clipboard. Raises UsageError without a terminal, or for a long text."""
    stream = next((stream for stream in (sys.stdout, sys.stderr) if is_terminal(stream)), None)
    if stream is None:
        raise UsageError("Copying needs a terminal.")
    data = text.encode()
    if len(data) > MOST_BYTES:
        raise UsageError("The answer is too long for the clipboard of a terminal.", hint="Use /save FILE.")
    stream.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    stream.flush()
