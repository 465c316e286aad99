"""Checks the input of a batch before its first line runs; a file with mistakes fails as a whole, and they are told."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from twofold.api.batch.lines import InputLine, custom_id_of, decode_line, digest_of, read_lines, target_of
from twofold.api.fields import FieldError
from twofold.api.openai.errors import error_message
from twofold.server.batches.record import LineError
from twofold.server.edge.body import is_countable
from twofold.server.edge.limits import BodyLimits

MAX_TOLD: Final = 100
"""Mistakes; there may be one in each of 50,000 lines."""
STEP_BYTES: Final = 1 << 20
STEP_LINES: Final = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Most lines of a batch and bytes of a line; lines that run at once, of all batches; batches of a tenant that have
    not ended; objects, lists and values of a line, as of a request's body."""

    lines: int = 50_000
    line_bytes: int = 4 << 20
    width: int = 32
    unfinished: int = 100
    body: BodyLimits = field(default_factory=BodyLimits)


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """What an input holds. ``model`` is the one that all lines ask for; ``errors`` is empty where it can run."""

    lines: int
    model: str | None
    errors: tuple[LineError, ...]


class _Checker:
    """Looks at one line after the other."""

    def __init__(self, endpoint: str, limits: BatchLimits) -> None:
        self._endpoint, self._limits = endpoint, limits
        self._custom_ids: set[bytes] = set()
        self._models: set[str | None] = set()
        self.lines = 0
        self.errors: list[LineError] = []

    def take(self, line: InputLine) -> None:
        self.lines += 1
        try:
            self._look(line)
        except FieldError as error:
            self.errors.append(LineError(error.code, error_message(error), error.param, line.number))

    def end(self) -> CheckedInput:
        if not self.lines:
            self.errors.append(LineError("empty_file", "The input file has no lines."))
        if self.lines > self._limits.lines:
            message = f"The input file has more than {self._limits.lines} lines. Split it into several batches."
            self.errors.append(LineError("too_many_requests", message))
        model = next(iter(self._models)) if len(self._models) == 1 else None
        return CheckedInput(self.lines, model, tuple(self.errors[:MAX_TOLD]))

    @property
    def enough(self) -> bool:
        return self.lines > self._limits.lines or len(self.errors) >= MAX_TOLD

    def _look(self, line: InputLine) -> None:
        if line.data is not None and not is_countable(line.data, self._limits.body):
            most = f"{self._limits.body.containers:,} objects and lists or {self._limits.body.values:,} values"
            raise FieldError(f"This line has more than {most}.", param="line", code="invalid_json_line")
        fields = decode_line(line, self._limits.line_bytes)
        custom_id = digest_of(custom_id_of(fields))
        if custom_id in self._custom_ids:
            raise FieldError("An earlier line has the same custom_id.", param="custom_id", code="duplicate_custom_id")
        self._custom_ids.add(custom_id)
        _, body = target_of(fields, (self._endpoint,))
        if not isinstance(body, dict):
            raise FieldError("body must be an object.", param="body")
        model = body.get("model")
        self._models.add(model if isinstance(model, str) and len(self._models) < 2 else None)


def check_input(path: Path, endpoint: str, limits: BatchLimits) -> Generator[None, None, CheckedInput]:
    """Reads the whole input, a few lines at each step. Bodies are looked at when their lines run."""
    checker = _Checker(endpoint, limits)
    for lines in in_steps(read_lines(path, limits.line_bytes)):
        for line in lines:
            checker.take(line)
        if checker.enough:
            break
        yield
    return checker.end()


def in_steps(lines: Iterator[InputLine]) -> Iterator[list[InputLine]]:
    """Lines in lists that take a moment and little memory: STEP_LINES of them, or as many as have STEP_BYTES."""
    while found := next_step(lines):
        yield found


def next_step(lines: Iterator[InputLine]) -> list[InputLine]:
    """The next such list; empty at the end."""
    found: list[InputLine] = []
    size = 0
    for line in islice(lines, STEP_LINES):
        found.append(line)
        size += len(line.data or b"")
        if size >= STEP_BYTES:
            break
    return found
