"""Makes the files that a batch ends with: the answers, and the lines that have none."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from twofold.api.batch.journal import ID_PREFIX
from twofold.api.batch.lines import InputLine, custom_id_of, decode_line, read_lines
from twofold.api.fields import FieldError
from twofold.server.batches.check import STEP_LINES, in_steps
from twofold.server.batches.record import NOTHING, BatchTally, LineError
from twofold.server.storage.batches import BatchPaths


@dataclass(frozen=True, slots=True)
class Results:
    """What was written: ``tally`` of the lines that were answered, ``left`` that were not."""

    tally: BatchTally
    left: int

    @property
    def lines(self) -> int:
        return self.tally.completed + self.tally.failed + self.left


def write_results(paths: BatchPaths, line_bytes: int, reason: LineError) -> Generator[None, None, Results]:
    """Divides the journal into ``paths.output`` and ``paths.errors``, a few lines at each step.

    Every line of the input that has no answer gets ``reason`` as its error. Raises OSError.
    """
    tally, left = NOTHING, 0
    finished: set[str] = set()
    with paths.output.open("wb") as output, paths.errors.open("wb") as errors:
        for number, (data, line) in enumerate(_written(paths.journal)):
            (output if line["error"] is None else errors).write(data)
            finished.add(line["id"])
            tally = tally.plus(line)
            if number % STEP_LINES == 0:
                yield
        with closing(read_lines(paths.source, line_bytes)) as lines:
            for step in in_steps(lines):
                unanswered = [line for line in step if ID_PREFIX + line.key not in finished]
                left += len(unanswered)
                _give_up(unanswered, errors, line_bytes, reason)
                yield
        for file in (output, errors):
            file.flush()
            os.fsync(file.fileno())
    return Results(tally, left)


def _written(journal: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a journal, as they stand and as objects."""
    if not journal.exists():
        return
    with journal.open("rb") as file:
        for data in file:
            if data.endswith(b"\n"):
                yield data, json.loads(data)


def _give_up(lines: list[InputLine], errors: BinaryIO, line_bytes: int, reason: LineError) -> None:
    for line in lines:
        told = {"code": reason.code, "message": reason.message}
        record = {
            "id": ID_PREFIX + line.key,
            "custom_id": _custom_id(line, line_bytes),
            "response": None,
            "error": told,
        }
        errors.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


def _custom_id(line: InputLine, line_bytes: int) -> str | None:
    try:
        return custom_id_of(decode_line(line, line_bytes))
    except FieldError:
        return None
