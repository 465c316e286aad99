"""The lines of a batch that have no result yet, and their results.

    with open_batch(source, target, clock, ENDPOINTS) as run:
        for call in run.calls():
            run.write(call, 200, body)

``runner`` runs the lines in an engine of this process; a server runs them as it runs HTTP requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from twofold.api.batch.journal import Journal
from twofold.api.batch.lines import BatchReader, InputLine, LineCall, next_chunk, read_lines
from twofold.api.fields import FieldError
from twofold.api.openai.errors import error_code, error_message
from twofold.core.clock import Clock
from twofold.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """``found`` of the ``done`` lines were finished by earlier runs; ``failed`` counts lines of all runs.

    Tokens and seconds are those of this run, tokens of unfinished lines included.
    """

    lines: int
    found: int
    done: int
    failed: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return self.done == self.lines

    @property
    def prompt_tok_s(self) -> float:
        return self.prompt_tokens / self.seconds if self.seconds else 0.0

    @property
    def completion_tok_s(self) -> float:
        return self.completion_tokens / self.seconds if self.seconds else 0.0


class BatchRun:
    """One run over the ``lines`` of the input at ``source``; ``close`` closes the journal, too."""

    def __init__(self, source: Path, journal: Journal, reader: BatchReader, lines: int) -> None:
        self.journal = journal
        self._count = lines
        self._reader = reader
        self._lines = read_lines(source, reader.max_bytes)

    @property
    def progress(self) -> BatchProgress:
        """Counts of finished lines, without tokens and seconds."""
        tally = self.journal.tally
        return BatchProgress(self._count, len(self.journal.finished), tally.finished, tally.failed)

    def calls(self) -> Iterator[LineCall]:
        """The lines without a result. The result of an invalid line is its error."""
        return chain.from_iterable(iter(self.next_calls, None))

    def next_calls(self) -> list[LineCall] | None:
        """The calls of the next few lines, perhaps none; None at the end of the input. Raises ResourceError."""
        lines = next_chunk(self._lines)
        return [call for line in lines if (call := self._read(line)) is not None] if lines else None

    def write(self, call: LineCall, status: int, body: object) -> None:
        """Writes the result of a line: the status and the body of an HTTP response, a ``ReplyObject``. Raises
        ResourceError."""
        data = to_builtins(body)
        response = {"status_code": status, "request_id": call.request_id, "body": data}
        error = None if status == 200 else _error(data["error"])
        self.journal.write(call.line_key, {"custom_id": call.custom_id, "response": response, "error": error})

    def close(self) -> None:
        with closing(self.journal):
            self._lines.close()

    def _read(self, line: InputLine) -> LineCall | None:
        finished = line.key in self.journal.finished
        try:
            call = self._reader.read(line)  # also for a finished line, to record its custom_id
        except FieldError as error:
            if not finished:
                message = f"Line {line.number}: {error_message(error)}"
                self.journal.write(line.key, refusal(self._reader.custom_id(line), error_code(error), message))
            return None
        return None if finished else call


@contextmanager
def open_batch(
    source: Path, target: Path, clock: Clock, endpoints: Collection[str], *, overwrite: bool = False
) -> Iterator[BatchRun]:
    """Opens both files. Raises UsageError unless the output is new or belongs to the input, ResourceError if it
    cannot be written."""
    _check_source(source)
    if target.exists() and source.samefile(target):
        raise UsageError("Input and output are the same file.", hint="Name another output file.")
    with Journal(target, clock, overwrite=overwrite) as journal:
        count = journal.check(line.key for line in read_lines(source))
        yield BatchRun(source, journal, BatchReader(endpoints), count)


def _check_source(source: Path) -> None:
    """Checks that the input can be read, before the output is opened."""
    if not source.is_file():
        what = "is no regular file" if source.exists() else "does not exist"
        raise UsageError(f"{source} {what}.", hint="The input is a file of requests, one JSON object per line.")
    try:
        source.open("rb").close()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}.") from error


def refusal(custom_id: str | None, code: str, message: str) -> dict[str, Any]:
    """The result of a line that was not run."""
    return {"custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}


def _error(error: Mapping[str, Any]) -> dict[str, str]:
    """The code and the message of an error's body."""
    return {"code": str(error.get("code") or "server_error"), "message": str(error.get("message") or "")}
