"""Writes the files of a batch that ends: completed lines, and lines that failed or were not run."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from twofold.api.batch.journal import ID_PREFIX, NOTHING, BatchTally, encode_result, read_results
from twofold.api.batch.lines import CHUNK_LINES, BatchReader, chunked, read_lines
from twofold.api.batch.run import refusal
from twofold.server.batches.record import LineError
from twofold.server.storage.batches import BatchPaths


@dataclass(frozen=True, slots=True)
class Results:
    """What was written: ``tally`` counts the lines that ran, ``left`` those that did not."""

    tally: BatchTally
    left: int

    @property
    def lines(self) -> int:
        return self.tally.finished + self.left


def write_results(paths: BatchPaths, line_bytes: int, reason: LineError) -> Generator[Results | None, None, None]:
    """Divides the journal into ``paths.output`` and ``paths.errors``, a few lines per step.

    Every line of the input without a result gets ``reason`` as its error. Raises OSError.
    """
    tally, left = NOTHING, 0
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
