"""The two files of a batch, checked before it runs, and its progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from twofold.api.batch.journal import Journal
from twofold.api.batch.lines import read_lines
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


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """An input and the output that belongs to it; ``lines`` counts the lines of the input that are not blank."""

    source: Path
    journal: Journal
    lines: int

    @property
    def progress(self) -> BatchProgress:
        """Finished lines; without tokens and seconds."""
        tally = self.journal.tally
        return BatchProgress(self.lines, len(self.journal.finished), tally.finished, tally.failed)


@contextmanager
def open_batch(source: Path, target: Path, clock: Clock, *, overwrite: bool = False) -> Iterator[BatchFiles]:
    """Opens both files. Raises UsageError unless the output is new or belongs to the input, ResourceError where it
    cannot be written."""
    _check_source(source)
    if target.exists() and source.samefile(target):
        raise UsageError("Input and output are the same file.", hint="Name another output file.")
    with Journal(target, clock, overwrite=overwrite) as journal:
        yield BatchFiles(source, journal, journal.check(line.key for line in read_lines(source)))


def _check_source(source: Path) -> None:
    """Checks that the input can be read, before the output is opened."""
    if not source.is_file():
        what = "is no regular file" if source.exists() else "does not exist"
        raise UsageError(f"{source} {what}.", hint="The input is a file of requests, one JSON object per line.")
    try:
        source.open("rb").close()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}.") from error
