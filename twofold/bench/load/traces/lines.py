"""The lines of a trace's file, and what becomes of those that say nothing usable.

A trace is read whole before the first request is sent, so that a hole in it shows at once and not after an hour.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from twofold.bench.load.checks import MAX_TOKENS
from twofold.core.errors import ParameterError, ResourceError, describe_name, unreadable

MAX_LINE_BYTES: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_REMEDY: Final = "Correct the line, or give --skip-bad to skip such lines."


class TraceLineError(ValueError):
    """A line cannot be used. ``field`` is the one at fault, "" where it is the whole line; ``hint`` is the way out."""

    def __init__(self, field: str, problem: str, *, hint: str = _REMEDY) -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Lines that were left out; ``first`` says what the first of them was about, with its place."""

    count: int = 0
    first: str | None = None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file for reading, unpacked if it is gzip. UsageError where there is none, ResourceError where it is damaged."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            if not packed:
                yield file
                return
            with gzip.open(file) as unpacked:
                yield cast("BinaryIO", unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ResourceError(f"{path} cannot be unpacked: {error}.", hint="Fetch the file again.") from error
    except OSError as error:
        raise unreadable(path, error) from error


def numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, without their ends, and their numbers from 1."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            yield number, line
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        text = line.rstrip()
        if text:
            yield number, text


def read_lines(path: Path, parse: Callable[[bytes], None], *, skip_bad: bool) -> SkippedLines:
    """Gives each line to ``parse``, which raises LineError for those that it cannot use.

    The first of these is a ParameterError that names file, line and field; with ``skip_bad`` they are counted instead.
    """
    count, first = 0, None
    with opened(path) as file:
        for number, line in numbered(file):
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise _too_long(path, number)
                parse(line)
            except TraceLineError as bad:
                message = f"{path.name}:{number}: {bad}"
                if not skip_bad:
                    raise ParameterError(f"{message}.", param=bad.field or "trace", hint=bad.hint) from None
                count += 1
                first = first or message
    return SkippedLines(count, first)


def first_line(path: Path) -> bytes:
    """The first line of a file that is not blank, or no bytes where there is none."""
    with opened(path) as file:
        return next((line for _, line in numbered(file)), b"")


def digest(path: Path) -> str:
    """The SHA-256 of a file as it lies there, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole(field: str, value: object, low: int, high: int = MAX_TOKENS) -> int:
    """``value``, if it is a whole number from ``low`` to ``high``; else LineError."""
    if type(value) is not int:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a whole number")
    if not low <= value <= high:
        raise TraceLineError(field, f"is {value!r:.30}, not from {low} to {high}")
    return value


def ascending(field: str, moment_s: float, last_s: float) -> float:
    """``moment_s``, if it is not before ``last_s``; else LineError."""
    if moment_s < last_s:
        raise TraceLineError(
            field,
            "is earlier than in the line before",
            hint=f"Sort the lines by {field}, or give --skip-bad to skip those that are not in order.",
        )
    return moment_s


def seconds(field: str, value: object, most: float) -> float:
    """``value``, if it is a finite number from 0 to ``most``; else LineError."""
    if type(value) is not int and type(value) is not float:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a number")
    if not 0 <= value <= most:
        raise TraceLineError(field, f"is {value!r:.30}, not from 0 to {most:g}")
    return float(value)


def _too_long(path: Path, number: int) -> ParameterError:
    return ParameterError(
        f"{path.name}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB.",
        param="trace",
        hint="A trace has one request in a line.",
    )
