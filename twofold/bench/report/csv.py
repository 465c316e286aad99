"""A CSV row for each request of a document, without chunks.

Spreadsheets treat texts that begin with ``= + - @``, a tab or a carriage return as formulas, and messages of servers
may be such texts: they get an apostrophe in front (OWASP, "CSV Injection").
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final, TextIO

from twofold.bench.report.document import Document, Request

_EXCLUDED: Final = frozenset({"gaps_us", "chunk_tokens"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

REQUEST_COLUMNS: Final = tuple(name for name in Request.__struct_fields__ if name not in _EXCLUDED)
COLUMNS: Final = ("run", *REQUEST_COLUMNS)
"""``run`` counts from 0."""


def write_csv(document: Document, file: TextIO) -> None:
    """Writes a head and all runs. ``file`` is a text file opened with ``newline=""``."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(document))


def to_csv(document: Document) -> str:
    text = io.StringIO()
    write_csv(document, text)
    return text.getvalue()


def _rows(document: Document) -> Iterator[list[object]]:
    for place, run in enumerate(document.runs):
        for request in run.requests:
            yield [place, *(_cell(getattr(request, name)) for name in REQUEST_COLUMNS)]


def _cell(value: object) -> object:
    """Empty for null; 0 and 1 for booleans; lines of a text joined, since some readers fail on line ends."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        line = " ".join(value.replace("\x00", " ").splitlines())
        return f"'{line}" if value.lstrip("\x00 \n").startswith(_FORMULA) else line
    return value
