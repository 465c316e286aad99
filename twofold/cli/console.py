"""Output of the command line: results go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from twofold.core.errors import ResourceError, TwofoldError
from twofold.host.env import read_environment

if TYPE_CHECKING:
    from rich.console import Console


def is_terminal(stream: TextIO | None) -> bool:
    """Whether an open stream is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def answer(text: str) -> None:
    """Writes a piece of the result at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Writes a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def fold(text: str, indent: int = 0) -> str:
    """Wraps the lines of a note between words on a terminal; ``indent`` is that of continuation lines."""
    if not is_terminal(sys.stderr):
        return text
    import shutil  # noqa: PLC0415 - start-up time
    import textwrap  # noqa: PLC0415

    width = max(20, shutil.get_terminal_size().columns - 1)
    between = " " * indent
    lines = (textwrap.wrap(line, width, subsequent_indent=between, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(each) for each in lines)


def faint(text: str) -> str:
    """Text of lower importance: dimmed on a terminal."""
    if not is_terminal(sys.stderr) or read_environment().dumb_terminal:
        return text
    return f"\x1b[2m{text}\x1b[0m"


def rich_console(*, stderr: bool = False) -> Console:
    """Imports rich, which takes time: only for slow commands."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(stderr=stderr, no_color=read_environment().no_color or None)


def print_json(value: object) -> None:
    import orjson  # noqa: PLC0415 - start-up time

    answer(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_lines(lines: Iterable[str]) -> None:
    answer("".join(f"{line}\n" for line in lines))


def write_file(path: Path, text: str) -> None:
    """Writes UTF-8 text and says so on standard error. Raises ResourceError."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ResourceError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Choose another file."
        ) from error
    note(f"Wrote {path}.")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, which can be cut and grepped; a narrow terminal does not fold them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print_lines("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def print_error(message: str, hint: str | None = None) -> None:
    """An error and a hint: coloured on a terminal, plain elsewhere."""
    if is_terminal(sys.stderr):
        console = rich_console(stderr=True)
        console.print("error:", style="bold red", end=" ")
        console.print(message, markup=False, emoji=False, highlight=False, soft_wrap=True)
        if hint:
            console.print("hint:", style="bold", end="  ")
            console.print(hint, markup=False, emoji=False, highlight=False, soft_wrap=True)
        return
    note(f"error: {message}")
    if hint:
        note(f"hint:  {hint}")


def print_failure(error: TwofoldError) -> None:
    print_error(str(error), error.hint)


class Status:
    """A line on a terminal that is removed when the work is done; elsewhere nothing."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> Status:
        if is_terminal(sys.stderr):
            print(self._text, end="", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_exception: object) -> None:
        if is_terminal(sys.stderr):
            print("\r" + " " * len(self._text) + "\r", end="", file=sys.stderr, flush=True)
