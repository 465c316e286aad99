"""Output of completions: rendered on a terminal, elsewhere exactly as generated."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from typing import Final

from twofold.cli.chat.base import Write
from twofold.cli.console import answer, is_terminal
from twofold.host.env import read_environment

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and line feed."""


@contextmanager
def answer_writer(*, markdown: bool) -> Iterator[Write]:
    """A function that writes a completion piece by piece to standard output; its last line is ended afterwards.

    Control characters are removed on terminals.
    """
    shown: Write = answer
    end = _end_line
    if not is_terminal(sys.stdout):
        with _ended(shown, end) as write:
            yield write
        return
    environment = read_environment()
    if markdown and not environment.dumb_terminal:
        from twofold.cli.chat.markdown import MarkdownWriter  # noqa: PLC0415 - start-up time

        writer = MarkdownWriter(answer, lambda: get_terminal_size().columns, colour=not environment.no_color)
        shown, end = writer.feed, writer.close
    with quiet_keys(), _ended(lambda text: shown(printable(text)), end) as write:
        yield write


def _end_line() -> None:
    answer("\n")


@contextmanager
def _ended(write: Write, end: Callable[[], None]) -> Iterator[Write]:
    """``write``, followed by ``end`` unless an error precedes the first character."""
    written = False

    def counted(text: str) -> None:
        nonlocal written
        written = written or bool(text)
        write(text)

    try:
        yield counted
    except BaseException:
        if written:
            end()
        raise
    end()


def printable(text: str) -> str:
    """The text without control characters."""
    return _CONTROLS.sub("", text)


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Hides typed keys; they are input of the next prompt, in which Enter sends."""
    try:
        import termios  # noqa: PLC0415 - not on every system
    except ImportError:
        yield
        return
    if not is_terminal(sys.stdin):
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = list(before)
    silent[0] = before[0] & ~termios.ICRNL
    silent[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
