"""The files of a batch: its input, checked before the first line runs, and its output, written when it ends.

An input with errors fails as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twofold.api.batch.journal import EMPTY_TALLY, ID_PREFIX, BatchTally, encode_result, read_results
from twofold.api.batch.lines import CHUNK_LINES, BatchReader, chunked, read_lines
from twofold.api.batch.run import refusal
from twofold.api.fields import FieldError
from twofold.api.openai.errors import error_message
from twofold.server.batches.record import BatchPaths, LineError
from twofold.server.edge.body import is_countable
from twofold.server.edge.limits import BodyLimits

MAX_ERRORS: Final = 100
"""Reported errors; each of 50,000 lines may have one."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of batches.

    lines, line_bytes   lines of one batch, bytes of one line
    width               lines of all batches that run at once
    unfinished          batches of one tenant that have not ended
    body                objects, lists and values of a line, the same as of a request's body
    """

    lines: int = 50_000
    line_bytes: int = 4 << 20
    width: int = 32
    unfinished: int = 100
    body: BodyLimits = field(default_factory=BodyLimits)


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """The result of ``check_input``. ``model`` is that of all lines, None if they name different ones; ``errors`` is
    empty for a valid input."""

    lines: int
    model: str | None
    errors: tuple[LineError, ...]


def check_input(path: Path, endpoint: str, limits: BatchLimits) -> Generator[CheckedInput | None, None, None]:
    """Checks the whole input, a few lines per step; yields None between steps, then the result.

    The fields of bodies are checked later, when their lines run.
    """
    reader = BatchReader((endpoint,), limits.line_bytes)
    count, models, errors = 0, set[str | None](), list[LineError]()
    for lines in chunked(read_lines(path, limits.line_bytes)):
        count += len(lines)
        for line in lines:
            try:
                if line.data is not None and not is_countable(line.data, limits.body):
                    limit = f"{limits.body.containers:,} objects and lists or {limits.body.values:,} values"
                    raise FieldError(f"This line has more than {limit}.", param="line", code="invalid_json_line")
                model = reader.read(line).body.get("model")
                models.add(model if isinstance(model, str) and len(models) < 2 else None)
            except FieldError as error:
                errors.append(LineError(error.code, error_message(error), error.param, line.number))
        if count > limits.lines or len(errors) >= MAX_ERRORS:
            break
        yield None
    if not count:
        errors.append(LineError("empty_file", "The input file has no lines."))
    if count > limits.lines:
        message = f"The input file has more than {limits.lines} lines. Split it into several batches."
        errors.append(LineError("too_many_requests", message))
    yield CheckedInput(count, models.pop() if len(models) == 1 else None, tuple(errors[:MAX_ERRORS]))


@dataclass(frozen=True, slots=True)
class Results:
    """The written results: ``tally`` counts the lines that ran, ``left`` those that did not."""

    tally: BatchTally
    left: int

    @property
    def lines(self) -> int:
        return self.tally.finished + self.left


def write_results(paths: BatchPaths, line_bytes: int, reason: LineError) -> Generator[Results | None, None, None]:
    """Divides the journal into ``paths.output`` and ``paths.errors``, a few lines per step.

    Every line of the input without a result gets ``reason`` as its error. Raises OSError.
    """
    tally, left = EMPTY_TALLY, 0
    finished: set[str] = set()
    reader = BatchReader((), line_bytes)
    paths.journal.touch()
    with paths.output.open("wb") as output, paths.errors.open("wb") as errors:
        for number, (data, result) in enumerate(read_results(paths.journal)):
            (output if result["error"] is None else errors).write(data)
            finished.add(result["id"])
            tally = tally.plus(result)
            if number % CHUNK_LINES == 0:
                yield None
        with closing(read_lines(paths.source, line_bytes)) as lines:
            for chunk in chunked(lines):
                for line in chunk:
                    if ID_PREFIX + line.key not in finished:
                        left += 1
                        record = refusal(reader.custom_id(line), reason.code, reason.message)
                        errors.write(encode_result(line.key, record))
                yield None
        for file in (output, errors):
            file.flush()
            os.fsync(file.fileno())
    yield Results(tally, left)
