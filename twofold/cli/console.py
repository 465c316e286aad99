"""The terminal. Results go to standard output, everything else to standard error.

rich and other modules that take time to import are imported when they are used.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.units import format_bytes
from twofold.host.env import read_environment
from twofold.host.signals import handled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

Write: TypeAlias = Callable[[str], None]

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""
LARGE: Final = 1_000_000_000
"""Downloads of at least this many bytes get a second line in a log, at half of them."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and line feed."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether an open stream is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def write_out(text: str) -> None:
    """Writes a part of the result to standard output and flushes it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Writes a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def fold(text: str, indent: int = 0) -> str:
    """Wraps the lines of a note between words on a terminal; continuation lines are indented by ``indent`` spaces."""
    if not is_terminal(sys.stderr):
        return text
    import textwrap  # noqa: PLC0415 - start-up time

    width = max(20, get_terminal_size().columns - 1)
    between = " " * indent
    lines = (textwrap.wrap(line, width, subsequent_indent=between, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(each) for each in lines)


def faint(text: str) -> str:
    """The text dimmed, if standard error is a terminal."""
    return _styled(text, "2")


def _styled(text: str, style: str, colour: str = "") -> str:
    """``text`` with the escape codes of a style and a colour, if standard error is a terminal that has them."""
    if not is_terminal(sys.stderr):
        return text
    try:
        environment = read_environment()
    except ParameterError:  # this error itself must be printable
        return text
    codes = style if environment.no_color else style + colour
    return text if environment.dumb_terminal else f"\x1b[{codes}m{text}\x1b[0m"


def rich_console(*, stderr: bool = False) -> Console:
    from rich import console  # noqa: PLC0415 - start-up time

    class Console(console.Console):
        def on_broken_pipe(self) -> None:
            """Leaves the error to ``main``; rich itself would exit with 1."""
            raise  # noqa: PLE0704 - rich calls this while it handles the error

    return Console(stderr=stderr, no_color=read_environment().no_color or None)


def print_json(value: object) -> None:
    """Prints plain data, or a document that is declared as a ``msgspec.Struct``."""
    import orjson  # noqa: PLC0415 - start-up time
    from msgspec import to_builtins  # noqa: PLC0415

    write_out(orjson.dumps(value, default=to_builtins, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_lines(lines: Iterable[str]) -> None:
    write_out("".join(f"{line}\n" for line in lines))


def write_file(path: Path, text: str) -> None:
    """Writes UTF-8 text to a file, with a note. Raises ResourceError."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Choose another file."
        ) from error
    note(f"Wrote {path}.")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns for cut and grep: lines are not wrapped at the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print_lines("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def print_error(message: str, hint: str | None = None) -> None:
    """Prints an error and a hint, on a terminal with highlighted labels."""
    if is_terminal(sys.stderr):
        message, hint = printable(message), hint and printable(hint)
    _print_labelled("error:", message, ";31")
    if hint:
        print_hint(hint)


def print_hint(text: str) -> None:
    """Prints what a user may do, as the hints of errors."""
    _print_labelled("hint: ", text)


def _print_labelled(label: str, text: str, colour: str = "") -> None:
    note(_styled(label, "1", colour) + fold(f"{label} {text}", len(label) + 1)[len(label) :])


@contextmanager
def status(text: str) -> Iterator[None]:
    """Shows a line on a terminal while the context is open; writes nothing elsewhere."""
    if not is_terminal(sys.stderr):
        yield
        return
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets instead of interrupting a step; a second Ctrl-C raises KeyboardInterrupt."""
    event = threading.Event()

    def on_interrupt(_signal: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    with handled(on_interrupt, signal.SIGINT):
        yield event


class DownloadProgress:
    """``Progress`` on standard error: on a terminal a bar with bytes, rate and remaining time; elsewhere, two lines."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._until_half: float | None = None

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:
        self.done()
        if is_terminal(sys.stderr):
            self._start_bar(total_bytes, what)
        elif not follows:
            note(what if total_bytes is None else f"{what} ({format_bytes(total_bytes)})")
            self._what, self._until_half = what, total_bytes / 2 if total_bytes and total_bytes >= LARGE else None

    def advance(self, count: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, count)
        elif self._until_half is not None:
            self._until_half -= count
            if self._until_half <= 0:
                self._until_half = None
                note(f"{self._what}: 50%")

    def done(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = self._until_half = None

    def _start_bar(self, total_bytes: int | None, what: str) -> None:
        from rich import progress as bars  # noqa: PLC0415 - start-up time

        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.DownloadColumn(),
            bars.TransferSpeedColumn(),
            bars.TimeRemainingColumn(),
            console=rich_console(stderr=True),
            transient=True,
        )
        self._task = self._bars.add_task(what, total=total_bytes)
        self._bars.start()


@contextmanager
def completion_writer(*, markdown: bool) -> Iterator[Write]:
    """A function that writes a completion piece by piece to standard output. A terminal gets it without control
    characters, with Markdown rendered if ``markdown``; pipes and files get the text as generated.

    The last line is ended when the context closes, unless an error precedes the first character.
    """
    terminal, written = is_terminal(sys.stdout), False
    show: Write = write_out
    end: Callable[[], None] = partial(write_out, "\n")
    if terminal and markdown and not (environment := read_environment()).dumb_terminal:
        from twofold.cli.chat.markdown import MarkdownWriter  # noqa: PLC0415 - start-up time

        writer = MarkdownWriter(write_out, lambda: get_terminal_size().columns, colour=not environment.no_color)
        show, end = writer.feed, writer.close

    def write(text: str) -> None:
        nonlocal written
        written = written or bool(text)
        show(printable(text) if terminal else text)

    with quiet_keys() if terminal else nullcontext():
        try:
            yield write
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
    """Hides typed keys, which stay input for the next prompt. Enter stays a carriage return, so that it sends there."""
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
