"""The requests of a trace in columns (a million in about 20 MB, without prompts), and reading the lines of its file.

A trace is read whole before the first request is sent, so that an invalid line is reported at once.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

from twofold.bench.load.base import PromptMessage, Shared
from twofold.bench.load.checks import MAX_REQUESTS, MAX_TOKENS
from twofold.core.errors import ParameterError, ResourceError, describe_name, unreadable

Format: TypeAlias = Literal["azure", "mooncake", "twofold"]

MAX_KEY: Final = 2**64 - 1
"""Keys of shared pieces have up to 64 bits."""
MAX_LINE_BYTES: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_REMEDY: Final = "Correct the line, or give --skip-bad to skip such lines."


class TraceLineError(ValueError):
    """A line is invalid. ``field`` is the invalid field, "" if it is the whole line."""

    def __init__(self, field: str, problem: str, *, hint: str = _REMEDY) -> None:
        super().__init__(f"{field} {problem}" if field else problem)
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Invalid lines that were skipped; ``first`` is the error of the first one."""

    count: int = 0
    first: str | None = None


@dataclass(frozen=True, slots=True)
class Extra:
    """Properties of a request that only Twofold's format has."""

    session: int | None = None
    messages: tuple[PromptMessage, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Later:
    """A turn of a session after its first one, due ``after_s`` seconds after the completion before it."""

    turn: int
    after_s: float
    input_tokens: int
    output_tokens: int
    extra: Extra


class Trace:
    """Requests with arrival times, ascending in ``at_s``, and the later turns of their sessions.

    at_s                   (n,) arrival times on the clock of the trace
    input_tokens, output_tokens   (n,)
    keys, piece_tokens     shared pieces of all prompts; ``ends`` (n,) is where those of each request end
    extras                 by the number of the request
    later                  by session, in the order of turns
    unused                 fields of the file that are ignored
    """

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self.form = path, form
        self.at_s = array("d")
        self.input_tokens = array("i")
        self.output_tokens = array("i")
        self.keys = array("Q")
        self.piece_tokens = array("i")
        self.ends = array("q")
        self.extras: dict[int, Extra] = {}
        self.later: dict[int, list[Later]] = {}
        self.unused: set[str] = set()
        self.skipped = SkippedLines()
        self.sha256 = ""

    def __len__(self) -> int:
        return len(self.at_s)

    def add(self, moment_field: str, at_s: float, input_tokens: int, output_tokens: int) -> int:
        """Adds a request without shared pieces and returns its number. Raises TraceLineError if it is out of order."""
        number = len(self.at_s)
        if number and at_s < self.at_s[-1]:
            hint = f"Sort the lines by {moment_field}, or give --skip-bad to skip those that are not in order."
            raise TraceLineError(moment_field, "is earlier than in the line before", hint=hint)
        if number == MAX_REQUESTS:
            raise TraceLineError("", f"is one more than the {MAX_REQUESTS:,} requests that a trace may have")
        self.at_s.append(at_s)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.ends.append(len(self.keys))
        return number

    def share(self, keys: Iterable[int], tokens: Iterable[int]) -> None:
        """Sets the shared pieces of the request added last."""
        self.keys.extend(keys)
        self.piece_tokens.extend(tokens)
        self.ends[-1] = len(self.keys)

    def start(self, number: int) -> int:
        """Where the pieces of request ``number`` begin."""
        return self.ends[number - 1] if number else 0

    def pieces(self, number: int) -> tuple[Shared, ...]:
        """The shared prefix of request ``number``."""
        places = range(self.start(number), self.ends[number])
        return tuple(Shared(self.keys[place], self.piece_tokens[place]) for place in places)


def read_lines(path: Path, parse: Callable[[bytes], None], *, skip_bad: bool) -> SkippedLines:
    """Passes each line to ``parse``, which raises TraceLineError for an invalid one.

    Raises ParameterError with file, line and field for the first invalid line; with ``skip_bad`` they are counted.
    """
    count, first = 0, None
    with _opened(path) as file:
        for number, line in _numbered(file):
            if len(line) > MAX_LINE_BYTES:
                message = f"{path.name}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MiB."
                raise ParameterError(message, param="trace", hint="A trace has one request in a line.")
            try:
                parse(line)
            except TraceLineError as bad:
                message = f"{path.name}:{number}: {bad}"
                if not skip_bad:
                    raise ParameterError(f"{message}.", param=bad.field or "trace", hint=bad.hint) from None
                count += 1
                first = first or message
    return SkippedLines(count, first)


def first_line(path: Path) -> bytes:
    """Returns the first line that is not blank, or an empty one if all lines are blank."""
    with _opened(path) as file:
        return next((line for _, line in _numbered(file)), b"")


def whole(field: str, value: object, low: int, high: int = MAX_TOKENS) -> int:
    """``value`` if it is a whole number from ``low`` to ``high``. Raises TraceLineError."""
    if type(value) is not int:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a whole number")
    if not low <= value <= high:
        raise TraceLineError(field, f"is {value!r:.30}, not from {low} to {high}")
    return value


def seconds(field: str, value: object, most: float) -> float:
    """``value`` if it is a number from 0 to ``most``. Raises TraceLineError."""
    if type(value) is not int and type(value) is not float:
        raise TraceLineError(field, "is missing" if value is None else f"is {describe_name(value)}, not a number")
    if not 0 <= value <= most:
        raise TraceLineError(field, f"is {value!r:.30}, not from 0 to {most:g}")
    return float(value)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file for reading, unpacked if it is gzip. Raises UsageError if it is missing, ResourceError if damaged."""
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


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, stripped at their end, with their numbers from 1; an overlong line is the last."""
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
