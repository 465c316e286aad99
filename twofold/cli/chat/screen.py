"""Where an answer appears: rendered on a terminal, exactly as generated elsewhere."""

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
"""Characters that a terminal obeys, but for tab and line feed."""


@contextmanager
def answer_writer(*, markdown: bool) -> Iterator[Write]:
    """What shows an answer piece by piece on standard output, and ends its last line.

    Control characters of a model never reach a terminal.
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
    """``write``, and ``end`` after it, but for an error before the first character."""
    written = False

    def noticed(text: str) -> None:
        nonlocal written
        written = written or bool(text)
        write(text)

    try:
        yield noticed
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
    """Keys that are typed meanwhile do not show; they wait for the next prompt, Enter as the key that sends."""
    try:
        import termios  # noqa: PLC0415 - not everywhere
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
