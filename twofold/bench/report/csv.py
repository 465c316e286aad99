"""A row for each request, for spreadsheets and data frames: the request of the document, without its chunks.

A spreadsheet takes a text that begins with one of ``= + - @``, a tab or a carriage return for a formula, and what a
server said may be one: such texts get an apostrophe in front (OWASP, "CSV Injection").
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final, TextIO

from twofold.bench.report.document import Document, Request

_LEFT_OUT: Final = frozenset({"gaps_us", "chunk_tokens"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

REQUEST_COLUMNS: Final = tuple(name for name in Request.__struct_fields__ if name not in _LEFT_OUT)
COLUMNS: Final = ("run", *REQUEST_COLUMNS)
"""Of the table; ``run`` counts from 0."""


def write_csv(document: Document, file: TextIO) -> None:
    """Writes all runs, a head first. ``file`` is open for text with ``newline=""``."""
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
    """Nothing for null; 0 and 1 for no and yes; lines of a text joined, for not every reader takes them."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        line = " ".join(value.replace("\x00", " ").splitlines())
        return f"'{line}" if value.lstrip("\x00 \n").startswith(_FORMULA) else line
    return value
