"""Makes parts of the document from records, and CSV from the document."""

from __future__ import annotations

import csv
import io
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from twofold.bench.metrics.requests import MeasurementRule, RequestFigures, request_figures
from twofold.bench.record import UNKNOWN, RecordedResponse, RequestSample, RunRecord
from twofold.bench.report.document import ClientMachine, Document, Microseconds, Request, Run
from twofold.host.cpu import read_cpu
from twofold.host.memory import read_memory

_MAX_TEXT: Final = 500
_DIGITS: Final = 6
_DIGITS_OF_TPOT: Final = 9
_EXCLUDED: Final = frozenset({"gaps_us", "chunk_tokens"})
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

REQUEST_COLUMNS: Final = tuple(name for name in Request.__struct_fields__ if name not in _EXCLUDED)
COLUMNS: Final = ("run", *REQUEST_COLUMNS)
"""``run`` counts from 0."""


def run_of(record: RunRecord, rule: MeasurementRule, summary: Mapping[str, Any], *, chunks: bool = True) -> Run:
    """One run of the document, with the summary of the requests that ``rule`` measures.

    ``chunks``: whether to include the gaps between chunks, most of its size: about 8 bytes a chunk.
    """
    measured = {sample.ask.index for sample in rule.measured(record)}
    rows = sorted(
        zip(record.samples, request_figures(record), strict=True), key=lambda row: (row[1].due_s, row[1].index)
    )
    return Run(
        load=record.load,
        began_unix=record.began_unix,
        duration_s=record.duration_s,
        interrupted=record.interrupted,
        client=record.client,
        summary=summary,
        requests=[
            request_of(sample, figures, measured=figures.index in measured, chunks=chunks) for sample, figures in rows
        ],
    )


_SAMPLE: Final = ("outcome", "status", "error", "request_id", "lag_s", "output_tokens", "merged")
_TIMES: Final = ("started_s", "connect_s", "sent_s", "first_s", "last_s", "ended_s")
_FIGURES: Final = ("index", "due_s", "ttft_s", "ttft_sent_s", "tpot_s", "e2e_s", "queue_s", "chunks")
_RESPONSE: Final = ("prompt_tokens", "cached_tokens", "reasoning_tokens", "finish", "streamed", "empty", "pings")
"""Fields of a document's request, by the record that has them under the same name."""


def request_of(sample: RequestSample, figures: RequestFigures, *, measured: bool, chunks: bool = True) -> Request:
    ask, answer = sample.ask, sample.answer
    sources = ((sample, _SAMPLE + _TIMES), (figures, _FIGURES), (answer, _RESPONSE))
    return Request(
        **{name: _value(name, getattr(source, name)) for source, names in sources for name in names},
        session=ask.session,
        turn=ask.turn,
        measured=measured,
        asked_input_tokens=ask.input_tokens,
        asked_output_tokens=ask.output_tokens,
        shared_tokens=sum(piece.tokens for piece in ask.shared),
        gaps_us=gaps_us(answer) if chunks else None,
        chunk_tokens=chunk_tokens(answer) if chunks else None,
    )


def machine_of_this() -> ClientMachine:
    """The machine that this process runs on."""
    cpu = read_cpu()
    return ClientMachine(
        processor=cpu.name,
        cores=cpu.cores,
        usable_threads=cpu.usable,
        memory_bytes=read_memory().usable,
        system=platform.platform(),
        python=platform.python_version(),
    )


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def gaps_us(answer: RecordedResponse) -> Microseconds:
    """Whole microseconds between chunks; their sums are within a microsecond of the arrival times."""
    if not answer.moments:
        return Microseconds()
    moments = np.maximum.accumulate(np.rint(np.frombuffer(answer.moments, np.float64) * 1e6))
    return Microseconds(np.diff(moments).astype(np.int64).tobytes())


def chunk_tokens(answer: RecordedResponse) -> int | list[int] | None:
    """Tokens of each chunk; one number if all are equal; None if any is unknown."""
    if not answer.tokens or UNKNOWN in answer.tokens:
        return None
    return answer.tokens[0] if len(set(answer.tokens)) == 1 else answer.tokens.tolist()


def moments_of(request: Request) -> Sequence[float]:
    """Arrival times of chunks, from the gaps; empty without gaps."""
    if request.first_s is None or request.gaps_us is None:
        return ()
    gaps = np.frombuffer(request.gaps_us, np.int64)
    return np.concatenate(([request.first_s], request.first_s + np.cumsum(gaps) * 1e-6)).tolist()  # type: ignore[no-any-return]


def _value(name: str, value: Any) -> Any:
    """A value rounded, or cut if it is a text; None for infinity."""
    if isinstance(value, float):
        return round(value, _DIGITS_OF_TPOT if name == "tpot_s" else _DIGITS) if math.isfinite(value) else None
    return value[:_MAX_TEXT] if isinstance(value, str) else value


def to_csv(document: Document) -> str:
    """A head and a row for each request, without chunks.

    Spreadsheets treat texts that begin with ``= + - @``, a tab or a carriage return as formulas, and messages of
    servers may be such texts: they get an apostrophe in front (OWASP, "CSV Injection").
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for place, run in enumerate(document.runs):
        for request in run.requests:
            writer.writerow([place, *(_cell(getattr(request, name)) for name in REQUEST_COLUMNS)])
    return file.getvalue()


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
